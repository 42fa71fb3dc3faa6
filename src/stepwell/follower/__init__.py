"""Followers: read the records of one process while it writes them, or afterwards, without numpy.

``trace.Follower`` returns spans and events, ``log.LogFollower`` metrics and other logged values. Both read
files only, in any process. Imports ``_core`` and the formats and file readers of the journal.
"""
