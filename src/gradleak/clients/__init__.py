"""The honest side: a client that trains on private examples and shares an update."""
