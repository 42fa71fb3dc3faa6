"""Annotations: the `ai` tree of names for what happens in training.

Here live its nodes and how they are used: as decorators, context managers, around iterables. Imports
telemetry and the vocabulary; knows no backend and no framework.
"""
