"""Analysis: answers from the tables of recorded runs, as plain values.

Imports reading; knows nothing of terminals or pages. The command line and the dashboard draw what it
returns.
"""
