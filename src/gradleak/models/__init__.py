"""Target models: loading, and one adapter per architecture family."""
