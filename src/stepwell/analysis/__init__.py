"""Analysis: answers from the tables of recorded runs, as plain values.

Imports reading. Draws nothing itself: the command line and the dashboard show the values that it returns.
"""
