"""Structured output: what a text must look like, as masks over the vocabulary of a model."""

from pyflow.constrain.grammar import Call, Calls, Constraint
from pyflow.constrain.masks import Grammars, Matcher

__all__ = ["Call", "Calls", "Constraint", "Grammars", "Matcher"]
