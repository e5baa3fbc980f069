"""Language models' updates with more tokens than dimensions."""
