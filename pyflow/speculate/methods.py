"""The list of methods: what --spec can be, and how each is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyflow.arguments import whole
from pyflow.errors import PyflowError
from pyflow.speculate.drafter import Method
from pyflow.speculate.drafters.draft_model import DraftModel, check_vocabulary
from pyflow.speculate.drafters.jacobi import Jacobi
from pyflow.speculate.drafters.lookahead import Lookahead
from pyflow.speculate.drafters.lookup import PromptLookup
from pyflow.speculate.drafters.pool import NgramPool
from pyflow.speculate.speculator import Speculator

if TYPE_CHECKING:
    from pyflow.engine.context import Policy
    from pyflow.engine.loaded import LoadedModel
    from pyflow.engine.model_files import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What to speculate with; see `speculator`."""

    method: str = "auto"
    """A name of METHODS."""
    n_max: int = 0
    """Nodes of a step at most; 0 leaves it to the method."""
    draft_models: Sequence[tuple[LoadedModel, Sequence[int]]] = ()
    """Each with the layers of it that run, none named being all. The smallest first: it guesses
    ahead, each further one corrects what the one before says. The target itself may be one."""
    p_split: float = 1.0
    """Draft models branch at tokens from this probability on; 1 is a chain."""
    window: int = 7
    ngram: int = 5
    guesses: int = 7
    """Lookahead's W, N and G."""
    pool: NgramPool | None = None
    """A text's n-grams, for the method `pool`, and for `auto`."""
    policy: Policy = "exact"
    fixed: bool = False
    """Run every draft whole and switch nothing off: to measure a method."""


def speculator(model: LoadedModel, options: Speculation) -> Speculator:
    """For a model, as the options say. To be closed; draft models are the caller's.

    PyflowError: a method that there is not, or that lacks what it needs; UnsupportedError: a draft
    model of another vocabulary.
    """
    whole("n_max", options.n_max, 0)
    if not 0 <= options.p_split <= 1:
        raise PyflowError(f"p_split: expected 0 to 1, found {options.p_split!r}")
    for draft, _ in options.draft_models:
        if draft is not model:
            check_vocabulary(model, draft)
    methods, n_max = made(model, options)
    return Speculator(
        methods, policy=options.policy, n_max=options.n_max or n_max, fixed=options.fixed
    )


# Methods, and how many nodes a step of theirs has at most.
Made: TypeAlias = tuple[list[Method], int]


def made(model: ModelFiles, options: Speculation) -> Made:
    """What the options' method is made of; PyflowError where there is none of that name."""
    make = METHODS.get(options.method)
    if make is None:
        raise PyflowError(f"speculation: expected {', '.join(METHODS)}, found {options.method!r}")
    return make(model, options)


def _lookup(_model: ModelFiles, _options: Speculation) -> Made:
    return [PromptLookup()], 16


def _pool(_model: ModelFiles, options: Speculation) -> Made:
    if options.pool is None:
        raise PyflowError("speculation: the method pool needs a text to take n-grams from")
    return [options.pool], 16


def _draft(_model: ModelFiles, options: Speculation) -> Made:
    made: DraftModel | None = None
    for draft, layers in options.draft_models:
        made = DraftModel(draft, layers=layers, p_split=options.p_split, filler=made)
    if made is None:
        raise PyflowError("speculation: the method draft needs a draft model")
    return [made], 8


def _lookahead(model: ModelFiles, options: Speculation) -> Made:
    made = Lookahead(
        window=options.window,
        ngram=options.ngram,
        guesses=options.guesses,
        stop_ids=model.tokenizer.stop_ids,
    )
    return [made], (options.window + options.guesses) * (options.ngram - 1)


def _jacobi(_model: ModelFiles, options: Speculation) -> Made:
    return [Jacobi(window=options.window)], options.window


def _auto(model: ModelFiles, options: Speculation) -> Made:
    """First what costs nothing."""
    methods, n_max = _lookup(model, options)
    if options.pool is not None:
        methods += _pool(model, options)[0]
    if options.draft_models:
        methods += _draft(model, options)[0]
    return methods, n_max


METHODS: dict[str, Callable[[ModelFiles, Speculation], Made]] = {
    "auto": _auto,
    "draft": _draft,
    "lookup": _lookup,
    "pool": _pool,
    "lookahead": _lookahead,
    "jacobi": _jacobi,
}
