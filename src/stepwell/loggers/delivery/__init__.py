"""Carrying what was logged to a backend, each record once."""
