"""The ``stepwell`` command: a thin shell over the library.

Each command parses its arguments, calls the library and prints. It may import analysis, reading, exporters
and loggers, but only inside the commands, so that each starts quickly.
"""

from stepwell.cli.app import main

__all__ = ["main"]
