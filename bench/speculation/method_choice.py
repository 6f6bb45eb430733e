"""Speculation methods as the command line writes them, ablations included."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyflow import Model
from pyflow.speculate import Speculator
from pyflow.speculate.drafters.kangaroo import Kangaroo
from pyflow.speculate.drafters.lookahead import Lookahead
from pyflow.speculate.drafters.pool import NgramPool
from pyflow.speculate.entry import Speculation
from pyflow.speculate.methods import speculator
from pyflow.speculate.trained.files import Trained

_METHOD = re.compile(
    r"none|auto(:untrained)?|draft|lookup|pool|jacobi(:\d+)?|(mlp|medusa)(:\d+)?"
    r"|kangaroo(:\d+(/eta[01]?\.\d+)?)?"
    r"|lookahead(:\d+/\d+/\d+(/noexplore|/noverify|/noprompt)*)?"
)


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """A method as written: the name of Lookahead may list parts to leave out, those of speculators
    nodes at most, auto:untrained has no speculator, and Kangaroo's eta may be given."""

    written: str

    @property
    def name(self) -> str:
        return self.written.partition(":")[0]

    def speculator(
        self,
        model: Model,
        drafts: Sequence[tuple[Model, Sequence[int]]],
        pool: NgramPool | None,
        trained: Trained | None,
        *,
        fixed: bool,
    ) -> Speculator | None:
        """A new one, to be closed; None for plain decoding."""
        if self.name == "none":
            return None
        words = self.written.partition(":")[2].split("/")
        sizes = [int(word) for word in words if word.isdigit()]
        if self.name == "lookahead":
            window, ngram, guesses = sizes or (7, 5, 7)
            lookahead = Lookahead(
                window,
                ngram,
                guesses,
                prompt_as_reference="noprompt" not in words,
                explore="noexplore" not in words,
                verify="noverify" not in words,
                stop_ids=model.tokenizer.stop_ids,
            )
            return Speculator([lookahead], n_max=(window + guesses) * (ngram - 1), fixed=fixed)
        if etas := [float(word[3:]) for word in words if word.startswith("eta")]:
            if trained is None or trained.adapter is None:
                raise ValueError("--methods kangaroo needs a Kangaroo as --speculator")
            kangaroo = Kangaroo(trained, trained.adapter, etas[0])
            return Speculator([kangaroo], n_max=sizes[0], fixed=fixed)
        given = Speculation(
            method=self.name,
            draft_models=drafts if self.name in ("auto", "draft") else (),
            pool=pool if self.name in ("auto", "pool") else None,
            trained=None if "untrained" in words else trained,
            n_max=sizes[0] if sizes and self.name != "jacobi" else 0,
            window=sizes[0] if sizes else 8,
            fixed=fixed,
        )
        return speculator(model, given)


def methods(value: str) -> list[MethodChoice]:
    """The methods of an option, separated by commas."""
    names = value.split(",")
    for name in names:
        if not _METHOD.fullmatch(name):
            raise argparse.ArgumentTypeError(
                f"expected none, auto, auto:untrained, draft, lookup, pool, mlp:7, medusa:7, "
                f"kangaroo:6/eta0.6, jacobi:8 or lookahead:7/5/7, found {name!r}"
            )
        _, _, sizes = name.partition(":")
        numbers = [int(n) for n in sizes.split("/") if n.isdigit()]
        if any(not 1 <= n <= 64 for n in numbers) or (len(numbers) == 3 and numbers[1] < 2):
            raise argparse.ArgumentTypeError(
                f"expected numbers from 1 to 64, and n-grams of 2 tokens or more, found {name!r}"
            )
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected every method once, found {value!r}")
    return [MethodChoice(name) for name in names]
