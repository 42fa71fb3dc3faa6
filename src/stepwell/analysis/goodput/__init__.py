"""Goodput: the productive share of a job's wall time, and the losses in the rest.

A job is one timeline: its attempts, the use of each instant, and the cost of a sample. Imports timeline,
ranks, the engine and reading.
"""

from stepwell.analysis.goodput.job import Goodput, goodput, runs_of_session
from stepwell.analysis.goodput.parts import PARTS, Loss
from stepwell.analysis.goodput.rates import Rates

__all__ = ["PARTS", "Goodput", "Loss", "Rates", "goodput", "runs_of_session"]
