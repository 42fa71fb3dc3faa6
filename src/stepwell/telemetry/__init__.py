"""Telemetry: runs, and how a process comes to record into one.

Here live the Run object, its identity, ranks and launches, child processes and artifacts. Imports the
journal; never a reader, a backend or a training framework.
"""
