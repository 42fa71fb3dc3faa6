"""The journal: append-only files that one process writes while it trains.

Contains the record formats, lanes, segments, sealing, the pump and the spool. Imports ``_core`` and the
standard library only (zstandard and msgspec when first needed). It has no notion of training: a *context* is
a pair of numbers.
"""
