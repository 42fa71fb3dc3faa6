"""Integrations: training loops of other libraries, recorded without being rewritten.

One module or package per library, which is imported there and nowhere else. Imports the fronts; knows no
backend.
"""
