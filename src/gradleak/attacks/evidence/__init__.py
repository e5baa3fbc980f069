"""What an update gives away by itself."""
