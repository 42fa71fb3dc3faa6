"""A read-only web page over run folders, and the same page as one HTML file.

``answers`` turns analysis into JSON, ``app`` serves it, ``html`` writes it into a file. The page is built
from ``ui/`` into ``static/``. May import analysis, exporters and loggers. Only the command line and notebooks
import it.
"""
