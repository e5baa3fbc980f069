"""The kit that several attacks share: spans of layers' inputs, and what fits them."""
