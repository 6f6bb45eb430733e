"""The list of methods: what --spec can be, and how each is made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflow.arguments import whole
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.speculate.drafters import (
    draft_model,
    jacobi,
    kangaroo,
    lookahead,
    lookup,
    medusa,
    mlp,
    pool,
)
from pyflow.speculate.entry import Entry, Made, Source, Speculation
from pyflow.speculate.speculator import Speculator
from pyflow.speculate.trained import find
from pyflow.speculate.trained.files import Trained

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel
    from pyflow.engine.model_files import ModelFiles


_SOURCES: dict[Source, str] = {
    "draft_models": "a draft model",
    "pool": "a text to take n-grams from",
    "trained": "a trained speculator: its folder, or NAME.speculator beside the model (pyflow has "
    "none for it)",
}


_TRAINED = (mlp.ENTRY, medusa.ENTRY, kangaroo.ENTRY)


def _auto(model: ModelFiles, options: Speculation) -> Made:
    """All that is given; what costs nothing comes first."""
    entries = [lookup.ENTRY]
    entries += [entry for entry in (pool.ENTRY, draft_model.ENTRY) if not _lacks(entry, options)]
    kind = options.trained.kind if isinstance(options.trained, Trained) else ""
    entries += [entry for entry in _TRAINED if entry.name == kind]
    made = [entry.make(model, options) for entry in entries]
    return [method for methods, _ in made for method in methods], made[0][1]


METHODS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("auto", _auto, uses=("pool", "draft_models", "trained")),
        draft_model.ENTRY,
        lookup.ENTRY,
        pool.ENTRY,
        lookahead.ENTRY,
        jacobi.ENTRY,
        *_TRAINED,
    )
}


def speculator(model: LoadedModel, options: Speculation) -> Speculator:
    """For a model, as the options say. To be closed; draft models are the caller's.

    PyflowError: an unknown method, or one that lacks what it needs; UnsupportedError: a draft model
    of another vocabulary, or beside a model that reads a source. Raises as `trained.files.load` for
    a speculator that does not fit; one that was found for `auto` is left out: GenerationWarning.
    """
    whole("n_max", options.n_max, 0)
    if not 0 <= options.p_split <= 1:
        raise PyflowError(f"p_split: expected 0 to 1, found {options.p_split!r}")
    if model.spec.source and (options.draft_models or options.trained not in (None, "found")):
        raise UnsupportedError(unseen_source(model))
    for draft, _ in options.draft_models:
        if draft is not model:
            draft_model.check_vocabulary(model, draft)
    methods, n_max = made(model, replace(options, trained=_trained(model, options)))
    return Speculator(
        methods, policy=options.policy, n_max=options.n_max or n_max, fixed=options.fixed
    )


def unseen_source(model: ModelFiles) -> str:
    """What to say where a network is asked to draft for a model that reads a source."""
    return f"{model.name}: drafts by other networks do not see its source; use lookup, which does"


def made(model: ModelFiles, options: Speculation) -> Made:
    """The methods that the options name, and the nodes of a step at most. PyflowError: an unknown
    method, or one that lacks what it needs."""
    entry = METHODS.get(options.method)
    if entry is None:
        raise PyflowError(f"speculation: expected {', '.join(METHODS)}, found {options.method!r}")
    if lacks := _lacks(entry, options):
        raise PyflowError(f"speculation: the method {entry.name} needs {_SOURCES[lacks[0]]}")
    return entry.make(model, options)


def _trained(model: LoadedModel, options: Speculation) -> Trained | None:
    """The speculator of the options, if their method drafts by one."""
    entry = METHODS.get(options.method)
    if entry is None or "trained" not in entry.needs + entry.uses:
        return None
    if options.trained is None or isinstance(options.trained, Trained):
        return options.trained
    named = None if options.trained == "found" else str(options.trained)
    return find.load(model, named, is_wanted="trained" in entry.needs)


def _lacks(entry: Entry, options: Speculation) -> list[Source]:
    given = {source: getattr(options, source) for source in entry.needs}
    return [source for source, what in given.items() if not what or what == "found"]
