"""What the methods of a speculator's heads share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.trained.drafting import HeadsMethod, of_kind

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles

# Nodes of a step, if the user names no number: twice as many rows cost more than they bring.
_N_NODES = 8


def heads_entry(name: str) -> Entry:
    """The entry of a method that drafts by heads alone."""

    def make(_model: ModelFiles, options: Speculation) -> Made:
        return [HeadsMethod(of_kind(name, options.trained))], _N_NODES

    return Entry(name, make, needs=("trained",))
