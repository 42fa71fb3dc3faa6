"""The cost of recording, compared with the minimum in CPython and with other tools: ``make bench``.

Every row is measured in a process of its own, as CPU time of the recording thread, relative to the
floor in that same process (``floor.py``). So rows can be compared with each other, and with those of
another machine, where times in microseconds could not.

``spans``, ``scalars``, ``disabled``, ``background``, ``growth`` and ``importing`` have the rows of
stepwell, ``peers`` those of other tools; ``registry`` lists them all with their targets.
"""
