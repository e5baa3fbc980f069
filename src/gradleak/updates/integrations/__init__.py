"""Updates of other training, recorded as it runs."""
