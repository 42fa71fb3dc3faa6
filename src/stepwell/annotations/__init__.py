"""Annotations: the `ai` tree, whose nodes name the parts of a training.

A node is used as a decorator, a context manager or around an iterable. Imports telemetry and the
vocabulary, no backend and no framework.
"""
