"""Conversion of logged objects to values and files that a run can store."""
