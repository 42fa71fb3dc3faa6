"""Shared parts of exporters to files: the files, JSON fields, recorded processes, lines of a thread."""
