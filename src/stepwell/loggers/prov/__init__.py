"""Provenance: what a run used, did and produced, as a W3C PROV document and a graph.

A document is created from the run folder alone, with or without a logger. ``stepwell.reading`` is imported
only when a document is created. The logger is ``stepwell.loggers.Prov4MLLogger``.
"""

from stepwell.loggers.prov.document import document_of

__all__ = ["document_of"]
