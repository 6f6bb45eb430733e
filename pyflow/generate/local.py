"""Contexts of this process, sized for prompts and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Unpack

from pyflow.arguments import whole
from pyflow.batch.local_runner import LocalRunner
from pyflow.engine.context import Context
from pyflow.engine.loaded import LoadedModel
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.session_file import SessionFile
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.generate.any_model import (
    Options,
    Prompt,
    Run,
    asked_languages,
    check_fits,
    checked,
)
from pyflow.generate.beams import Beams, Hypothesis, search_all
from pyflow.generate.stream import Stream
from pyflow.speculate import Speculator
from pyflow.tokenizer import NoTokenizerError

# One pass over the weights serves up to 16 rows: 16 sequences cost little more than one.
N_PARALLEL = 16
# Room for an answer whose length is left open.
OPEN_END = 4096


def run_model(model: LoadedModel, lengths: Sequence[int], n_predict: int, options: Options) -> Run:
    """A runner with a context of its own, of the size that these prompts need.

    Several prompts run as sequences of one batch. PyflowError: a prompt that does not fit.
    """
    speculator, n_ctx = _speculator(options), options.get("n_ctx")
    most, sources = model.spec.n_ctx_train, lengths if model.spec.source else []
    start = asked_languages(model, options).beginning(model.spec, model.defaults)
    lengths = lengths if start is None else [len(start)] * len(lengths)
    if n_ctx is not None and whole("n_ctx", n_ctx, 0) > most:
        raise ShapeError(
            f"n_ctx: expected up to {most:,}, the context that {model.name} was trained for; "
            f"found {n_ctx:,}"
        )
    limits = [
        _limit(model, n_ctx or min(most, _wanted(n, n_predict)), n, n_predict) for n in lengths
    ]
    cache_type = options.get("cache_type", "f16")
    session = None
    if (path := options.get("session")) is not None:
        if sources:
            raise PyflowError(f"session: {model.name} reads a source, whose cells are not kept")
        if len(limits) > 1:
            raise PyflowError(f"session: expected one prompt, found {len(limits)}")
        session = SessionFile(path, model, cache_type)
    n_parallel = min(len(limits), N_PARALLEL)
    n_cells = sum(sorted(limits, reverse=True)[:n_parallel])
    n_source = sum(sorted(sources, reverse=True)[:n_parallel])
    if speculator is not None:
        # Trees must fit in beside the text until its end.
        n_cells = min(n_cells + n_parallel * speculator.n_max, n_parallel * most)
    if session is not None:
        n_cells = max(n_cells, min(session.n_tokens, most))
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(session)
        context = model.context(
            n_cells, n_seq_max=n_parallel, cache_type=cache_type, n_source=n_source
        )
        runner = LocalRunner(context, speculator, n_parallel=n_parallel, session=session)
        stack.pop_all()  # the runner closes the session
    return Run(runner, limits, owned=True, reuse=session is not None)


def stream(
    context: Context, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
) -> Stream:
    """What a model writes in a context of the caller's, whose sequences are cleared.

    The options are those of `AnyModel.stream`, but for n_ctx and cache_type, which the context has.
    """
    wish = checked(context.model, prompt, options)
    speculator = _speculator(options)
    for name in ("n_ctx", "session"):
        if options.get(name) is not None:
            raise PyflowError(f"{name}: a context has its own; leave it out, or give the model")
    lengths = [len(wish.start or one) for one in wish.prompts]
    limits = [_limit(context.model, context.n_ctx, n, wish.n_predict) for n in lengths]
    most_first = sorted(limits, reverse=True)
    n_parallel = min(len(limits), N_PARALLEL, context.n_seq_max)
    while n_parallel > 1 and sum(most_first[:n_parallel]) > context.n_ctx:
        n_parallel -= 1
    context.clear()
    runner = LocalRunner(context, speculator, n_parallel=n_parallel)
    return wish.stream(context.model, Run(runner, limits))


def search(
    model: LoadedModel, sources: Sequence[Sequence[int]], n_predict: int, how: Beams
) -> list[list[Hypothesis]]:
    """The best texts for each source, as many sources at once as a context takes.

    UnsupportedError: the model reads no source.
    """
    if model.spec.source is None:
        raise UnsupportedError(f"{model.name}: beams need a model that reads a source, such as T5")
    at_once = max(1, N_PARALLEL // how.n)
    stops = model.defaults.stop_ids
    with suppress(NoTokenizerError):
        stops = model.tokenizer.stop_ids
    n_predict = min(n_predict, model.spec.n_ctx_train - 1)
    found: list[list[Hypothesis]] = []
    for at in range(0, len(sources), at_once):
        some = sources[at : at + at_once]
        n_seqs = len(some) * how.n
        with model.context(
            n_seqs * (n_predict + 1), n_seq_max=n_seqs, n_source=sum(map(len, some))
        ) as context:
            found += search_all(context, some, model.spec.source.start, stops, n_predict, how)
    return found


def _wanted(length: int, n_predict: int) -> int:
    return length + (n_predict if n_predict > 0 else OPEN_END)


def _limit(model: ModelFiles, most: int, length: int, n_predict: int) -> int:
    """Positions that a prompt and its answer may take; PyflowError if the prompt takes all."""
    check_fits(length, most, model.spec.n_ctx_train)
    return min(most, _wanted(length, n_predict)) if n_predict > 0 else most


def _speculator(options: Options) -> Speculator | None:
    found = options.get("speculator")
    if found is not None and not isinstance(found, Speculator):
        raise PyflowError(
            f"speculator: expected one of pyflow.speculate.speculator(...), found {found!r}"
        )
    return found
