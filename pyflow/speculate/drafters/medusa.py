"""Drafts by the heads of Medusa, which see no token but the newest one's hidden row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.trained.drafting import HeadsMethod, of_kind

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles

NAME = "medusa"
# Nodes of a step at most: with twice as many rows, steps cost more than they bring (docs).
_N_NODES = 8


def _make(_model: ModelFiles, options: Speculation) -> Made:
    return [HeadsMethod(of_kind(NAME, options.trained))], _N_NODES


ENTRY = Entry(NAME, _make, needs=("trained",))
