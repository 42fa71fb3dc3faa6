"""Delivery to TensorBoard."""
