"""Goodput: how much of a job's wall time moved the training on, and what the rest was lost to.

A job is one timeline: its attempts, what each instant of them went to, and what a sample cost. Imports
ranks and reading.
"""

from stepwell.analysis.goodput.job import Goodput, goodput, runs_of_session
from stepwell.analysis.goodput.losses import Loss
from stepwell.analysis.goodput.parts import PARTS
from stepwell.analysis.goodput.rates import Rates

__all__ = ["PARTS", "Goodput", "Loss", "Rates", "goodput", "runs_of_session"]
