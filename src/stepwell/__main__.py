"""``python -m stepwell``: the same as the command ``stepwell``."""

from stepwell.cli import main

main()
