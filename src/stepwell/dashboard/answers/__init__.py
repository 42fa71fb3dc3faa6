"""Answers about runs as JSON types, shaped as ``ui/src/types.ts``: one module for each view of the page.

Every answer is a plain function of a run, so that the server and the one-file report show the same. Imports
analysis; ``app`` serves the answers, ``worker`` computes those about large runs, ``html`` embeds them.
"""
