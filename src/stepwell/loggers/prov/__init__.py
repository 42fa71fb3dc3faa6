"""Provenance: what a run used, did and produced, as a W3C PROV document and as a graph of it.

A document follows from the run folder alone, with or without a logger. Reading is imported when it is
used: whoever only logs never needs it. The logger itself is in ``stepwell.loggers.provenance``.
"""

from stepwell.loggers.prov.document import document_of

__all__ = ["document_of"]
