"""The update: all that leaves a client, however it was made."""
