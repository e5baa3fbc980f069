"""What several attacks share: spans of layers' inputs, and which tokens and sentences fit them."""
