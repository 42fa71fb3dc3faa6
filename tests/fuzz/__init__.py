"""Damaged files: each reader gives a clear error or a part of what was there, within bounds."""
