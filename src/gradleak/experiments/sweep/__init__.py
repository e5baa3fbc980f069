"""Every combination of what is listed."""
