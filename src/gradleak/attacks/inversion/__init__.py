"""Learning To Invert."""
