"""Speculative decoding: drafters guess, the model verifies many guesses in one step."""

from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.entry import Speculation
from pyflow.speculate.methods import METHODS, speculator
from pyflow.speculate.speculator import DraftError, Root, Speculator
from pyflow.speculate.stats import SpeculationStats
from pyflow.speculate.tree import DraftTree

__all__ = [
    "METHODS",
    "Budget",
    "DraftError",
    "DraftTree",
    "Drafter",
    "Method",
    "Observed",
    "Root",
    "Speculation",
    "SpeculationStats",
    "Speculator",
    "Start",
    "speculator",
]
