"""The options of pipelines, which several commands share: several stages write one answer."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import model as options
from pyflow.cli.options import ranks
from pyflow.cli.options.finite import Finite
from pyflow.cli.options.model import F
from pyflow.cli.options.pipeline_choice import (
    AUTO,
    EVEN,
    PipelineChoice,
    drafting_models,
    threads_of_each,
)
from pyflow.cluster.run.strategy import NAMES
from pyflow.cluster.supervise.launcher import rank_of
from pyflow.cluster.supervise.lifeline import Numbers, here
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.cli.options.speculation import SpecChoice
    from pyflow.model import Model

_MAX_STAGES = 256
_FLAG = "--pipeline"


def _layers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> list[int] | str | None:
    if value is None or value in (AUTO, EVEN):
        return value
    parts = value.split(",")
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise click.BadParameter(
            f"expected auto, even, or numbers such as 10,8,6, found {value!r}", ctx, param
        )
    return [int(part) for part in parts]


def _switch(flag: str, text: str) -> Any:
    return click.option(flag, is_flag=True, help=f"For pipeinfer: {text}")


def _share(flag: str, text: str) -> Any:
    return click.option(flag, type=Finite(0, 1), metavar="P", help=f"For pipeinfer: {text}")


_OPTIONS = (
    click.option(
        _FLAG,
        "pipeline",
        type=click.Choice([*NAMES, AUTO]),
        help="Write with several stages, each of which holds some layers: threads (--stages), or "
        "the processes that mpirun has started. The text stays the same. iterative runs a token "
        "after the other, speculative guesses that follow it in one run, pipeinfer guesses in runs "
        "of their own while others are on their way; auto measures and takes the fastest, for each "
        "text anew by how the guesses for those before turned out.",
    ),
    click.option(
        "--stages",
        type=click.IntRange(1, _MAX_STAGES),
        metavar="N",
        help="With --pipeline: N stages in this process, each with its own -t threads.",
    ),
    click.option(
        "--layers",
        metavar="N,...",
        callback=_layers,
        help="Layers of each stage or rank, possibly 0, as in 10,8,6,6; even, for all as many; or "
        "auto, which measures them for a second or two and takes the fastest split that fits into "
        "their memory.  [default: auto for ranks, even for --stages]",
    ),
    click.option(
        "--draft-len",
        type=click.IntRange(1, 64),
        metavar="N",
        help="Guesses at a time.  [default: speculative 4, pipeinfer 2]",
    ),
    click.option(
        "--flight",
        type=click.IntRange(1, 1024),
        metavar="N",
        help="For pipeinfer: runs on their way at most.  [default: the stages and 2]",
    ),
    ranks.draft_ranks,
    _share("--p-accept", "guess what is likelier than P, as the drafter sees it.  [default: 0]"),
    _share("--p-recovery", "add P to that for every draft of a chain.  [default: 0]"),
    _share("--p-decay", "take P off for every draft that had no guess.  [default: 0]"),
    _switch("--redraft", "guess anew after each result, as published."),
    _switch("--no-cancel", "finish runs that nobody waits for."),
    _switch("--no-continuous", "guess only when no guess is on its way."),
    _switch("--no-partitions", "one set of cells for guesses."),
    _switch("--no-async", "let results wait while a draft is made."),
)
_TUNING = {
    "flight": "n_flight",
    "p_accept": "least",
    "p_recovery": "recovery",
    "p_decay": "decay",
    "redraft": "redrafts",
    "no_cancel": "cancels",
    "no_continuous": "continuous",
    "no_partitions": "partitioned",
    "no_async": "asynchronous",
}


def pipelines(function: F) -> F:
    """Adds the options; the command receives `pipeline: PipelineChoice` instead.

    It runs on rank 0 alone: the other ranks work for it, and leave with it.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        names = ("pipeline", "stages", "layers", "draft_len", "draft_ranks", *_TUNING)
        choice = _choice(**{name: options.pop(name) for name in names})
        spec: SpecChoice = options["spec"]
        if choice.draft_ranks and not spec.draft_models:
            raise click.UsageError("--draft-rank is of no use without --draft-model")
        if choice and options.get("numa"):
            raise click.UsageError(
                f"--numa is for one process, and {_FLAG} for several; start a rank per memory node"
            )
        if here.is_supervised and (not choice or choice.stages is not None):
            raise click.UsageError(
                "the ranks of 'cluster run' write one answer together: "
                + ("leave --stages out" if choice else f"add {_FLAG} auto")
            )
        if not choice or choice.stages is not None:
            return function(*args, pipeline=choice, **options)
        from pyflow.cluster.mpi.endpoint import world
        from pyflow.cluster.mpi.pipeline import dismiss

        choice.world = world()
        # On all ranks alike, before they wait for one another.
        numbers = here.numbers or Numbers.all(choice.world.size)
        choice.place(numbers, len(spec.draft_models))
        if choice.world.size == 1 and not here.is_supervised:
            raise click.UsageError(
                f"{_FLAG} needs several stages: add --stages N, or start it by mpirun -n N"
            )
        if choice.world.rank > 0:
            names = ("model", "threads", "quantize")
            return _serve(choice, spec, **{name: options.get(name) for name in names})
        try:
            return function(*args, pipeline=choice, **options)
        finally:
            if not choice.is_open:
                dismiss()

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def is_silent(args: Sequence[str]) -> bool:
    """Whether a command line is told to be wrong by another rank, which has been given the same."""
    return bool(rank_of(os.environ)) and any(arg.partition("=")[0] == _FLAG for arg in args)


def _choice(
    *,
    pipeline: str | None,
    stages: int | None,
    layers: list[int] | str | None,
    draft_len: int | None,
    draft_ranks: Sequence[int],
    **tuning: Any,
) -> PipelineChoice:
    """UsageError for options that do not go together."""
    used = {name: value for name, value in tuning.items() if value not in (None, False)}
    flags = ["--" + name.replace("_", "-") for name in used]
    if pipeline is None:
        others: dict[str, object] = {"--stages": stages, "--layers": layers}
        others |= {"--draft-len": draft_len, "--draft-rank": draft_ranks or None}
        flags = [name for name, value in others.items() if value is not None] + flags
        if flags:
            raise click.UsageError(f"{flags[0]} is of no use without {_FLAG}; add {_FLAG} auto")
    elif stages is not None and draft_ranks:
        raise click.UsageError("--draft-rank is for ranks, and --stages for one process")
    elif pipeline == "iterative" and draft_len is not None:
        raise click.UsageError(
            f"--draft-len is of no use to {_FLAG} iterative, which guesses nothing"
        )
    elif pipeline == AUTO and draft_len is not None:
        raise click.UsageError(
            f"--draft-len: {_FLAG} auto chooses it; name a strategy, or leave it out"
        )
    elif pipeline != "pipeinfer" and flags:
        raise click.UsageError(f"{flags[0]} is for {_FLAG} pipeinfer")
    fields = {_TUNING[n]: not v if n.startswith("no_") else v for n, v in used.items()}
    return PipelineChoice(pipeline, stages, layers, draft_len, fields, draft_ranks)


def _serve(
    choice: PipelineChoice,
    spec: SpecChoice,
    model: str | None,
    threads: Any,
    quantize: str | None,
) -> int:
    """On a rank other than 0: does what the head wants, and says nothing."""
    from pyflow import _core
    from pyflow.cluster.mpi.pipeline import serve
    from pyflow.engine.model_files import ModelFiles

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the head's, which then ends the others
    world = choice.world
    assert world is not None
    n_threads = threads[0] if isinstance(threads, list) else threads
    n_threads = n_threads or threads_of_each(world.n_here)
    try:
        path = model or options.default_model()
    except (click.UsageError, PyflowError):
        path = "smollm2"  # which is not there: the head tells so

    names, drafters = spec.draft_models, choice.drafters

    def models() -> AbstractContextManager[list[Model]]:
        own = names if len(drafters) == 1 else [names[drafters.index(world.rank)]]
        described = ModelFiles(path, quantize=quantize)
        return drafting_models(described, own, spec.draft_layers, n_threads)

    serve(
        path,
        pool=_core.ThreadPool(n_threads),
        quantize=quantize,
        drafters=drafters,
        drafts=models if world.rank in drafters else None,
    )
    return 0
