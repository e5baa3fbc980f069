"""What an audit found, put plainly: how bad it is, what leaked, and why attacks failed where they did."""
