"""Integrations: record the training loops of other libraries without changing them.

One module or package per library, which is imported nowhere else. ``wrappers.py``, ``timing.py`` and
``configuration.py`` are shared. Imports the fronts (training, annotations, diagnostics, loggers), no backend.
"""
