"""Shared parts of the trace exporters: files, JSON fields, recorded processes, lines of a thread."""
