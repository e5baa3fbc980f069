"""What defences cost and what they buy: simulated training under each, attacks on each, and the two joined."""
