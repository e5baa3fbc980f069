"""Which part of the model leaks: every layer and every module attacked alone, beside the whole update."""
