"""Drafts by an MLP speculator, each head of which sees the token guessed before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.trained.drafting import HeadsMethod, of_kind

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles

NAME = "mlp"
# Nodes of a step at most: with twice as many rows, steps cost more than they bring (docs).
_N_NODES = 8


def _make(_model: ModelFiles, options: Speculation) -> Made:
    return [HeadsMethod(of_kind(NAME, options.trained))], _N_NODES


ENTRY = Entry(NAME, _make, needs=("trained",))
