"""Soft spans: evidence from directions that show only a part of what layers saw."""
