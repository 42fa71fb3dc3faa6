"""The journal: append-only files that one process writes while it trains.

Here live record formats, per-thread lanes, segments, sealing, the pump and the spool. Imports the
standard library alone (zstandard and msgspec when first needed). Knows no training words: no rank,
no epoch, no loss; a *context* is two numbers to it.
"""
