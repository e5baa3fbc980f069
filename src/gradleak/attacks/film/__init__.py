"""FILM."""
