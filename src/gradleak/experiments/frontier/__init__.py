"""What defences protect, and what they cost."""
