"""Which part of the model leaks."""
