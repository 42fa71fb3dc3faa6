"""Shared basics: errors and warnings, clocks, files, JSON, text, argument checks, settings, threads.

Imports nothing else of stepwell, and knows nothing of its domain: no run, span or rank.
"""
