"""Texts and pictures: reading them, and drawing the private batches of an audit."""
