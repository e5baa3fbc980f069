"""Exact recovery."""
