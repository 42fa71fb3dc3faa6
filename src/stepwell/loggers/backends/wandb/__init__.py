"""The Weights & Biases backend."""
