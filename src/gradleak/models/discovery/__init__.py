"""Where a model of an unlisted type keeps its parts, found by running a small copy of it and watching."""
