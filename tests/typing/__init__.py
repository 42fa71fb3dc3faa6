"""Users' programs that ``make lint`` type-checks.

A wrong call with ``type: ignore`` is a check as well: mypy complains about an ignore that is not
needed, so the call has to be an error.
"""
