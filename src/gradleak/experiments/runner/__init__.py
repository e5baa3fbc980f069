"""Cells: what they are, where they lie, and the workers that run them."""
