"""One audit: draw, send, attack, score."""
