"""Goodput: the productive share of a job's wall time, and the losses in the rest.

A job is one timeline: its attempts, the use of each instant, and the cost of a sample. Imports timeline,
ranks, the engine and reading.
"""

from stepwell.analysis.goodput.job import Goodput, Rates, goodput, runs_of_session
from stepwell.analysis.goodput.parts import PARTS, Loss

__all__ = ["PARTS", "Goodput", "Loss", "Rates", "goodput", "runs_of_session"]
