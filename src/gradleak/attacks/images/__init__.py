"""Attacks on the updates of image models."""
