"""Tables of papers as files: what to run, and the published numbers to set beside it."""
