"""Delivery of logged records to backends, each record exactly once."""
