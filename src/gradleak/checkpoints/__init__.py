"""What a longer training changes: the same audit on a model as it was at several steps."""
