"""Folders for hundreds of small runs."""

from tests.in_memory import tmp_path as tmp_path
