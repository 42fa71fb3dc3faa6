"""The ``stepwell`` command: a thin shell over the library.

Each command parses, calls, and draws. Imports analysis and reading, and only inside of the commands, so
that each starts quickly.
"""

from stepwell.cli.main import main

__all__ = ["main"]
