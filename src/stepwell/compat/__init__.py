"""The spellings of other libraries, as thin names over ours.

Imports whatever has the thing itself; holds no behaviour of its own.
"""
