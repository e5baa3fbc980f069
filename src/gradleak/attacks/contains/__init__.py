"""Were these sentences in it? A likelihood ratio and a false-alarm rate for every candidate."""
