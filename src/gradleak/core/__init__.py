"""What everything stands on: errors, names, budgets, files, seeds, assets."""
