"""Delivery to Weights & Biases."""
