"""What a training gives away as it goes on."""
