"""Learning to invert: a network that is trained to read data off updates (docs/lti.md).

`training` and `saved` know nothing of text or images; `text` puts the pieces together for token sequences.
"""
