"""Delivery to MLflow."""
