"""The options of pipelines, which several commands share: several stages write one answer."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from pyflow.cli import options
from pyflow.cli.options import F
from pyflow.cluster.drafts import LookupGuesser, ModelGuesser
from pyflow.cluster.launcher import rank_of
from pyflow.cluster.layers import by_count, given
from pyflow.cluster.lifeline import here
from pyflow.cluster.strategy import named
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.topology import cgroup_cpus, choose_threads, this_machine

if TYPE_CHECKING:
    from pyflow.cluster.drafts import Guesser
    from pyflow.cluster.model import PipelinedModel
    from pyflow.cluster.strategy import Strategy
    from pyflow.cluster.world import World
    from pyflow.engine import Described, Model
    from pyflow.topology import NumaMode

    AnyModel: TypeAlias = Model | PipelinedModel

_NAMES = ["iterative", "speculative", "pipeinfer"]
_MAX_STAGES = 256
_FLAG = "--pipeline"


def _counts(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise click.BadParameter(f"expected numbers such as 10,8,6, found {value!r}", ctx, param)
    return [int(part) for part in parts]


def _switch(flag: str, text: str) -> Any:
    return click.option(flag, is_flag=True, help=f"For pipeinfer: {text}")


def _share(flag: str, text: str) -> Any:
    return click.option(
        flag, type=click.FloatRange(0, 1), metavar="P", help=f"For pipeinfer: {text}"
    )


_OPTIONS = (
    click.option(
        _FLAG,
        "pipeline",
        type=click.Choice(_NAMES),
        help="Write with several stages, each of which holds some layers: threads (--stages), or "
        "the processes that mpirun has started. The text stays the same. iterative runs a token "
        "after the other, speculative guesses that follow it in one run, pipeinfer guesses in runs "
        "of their own while others are on their way.",
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
        callback=_counts,
        help="Layers of each stage or rank, possibly 0, as in 10,8,6,6.  [default: all as many]",
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


@dataclass(slots=True)
class PipelineChoice:
    """What the options ask for."""

    name: str | None
    """None: no pipeline."""
    stages: int | None
    layers: list[int] | None
    draft_len: int | None
    tuning: dict[str, Any]
    """Fields of Strategy."""
    world: World | None = None
    """The ranks, where stages are not in this process."""
    is_open: bool = field(default=False, init=False)
    """The other ranks have a pipeline to work for."""

    def __bool__(self) -> bool:
        return self.name is not None

    @contextmanager
    def model(
        self,
        name: str | None,
        n_threads: int | None,
        numa: NumaMode | None,
        *,
        n_ctx: int | None = None,
        cache_type: str = "f16",
        draft_models: Sequence[str] = (),
    ) -> Iterator[AnyModel]:
        """The model, in one place or in several; loaded, and freed in the end.

        n_ctx: of a pipeline, as the option has it. n_threads: of each stage.
        """
        if not self:
            with options.load(name, n_threads, numa) as model:
                yield model
            return
        from pyflow.cluster.model import in_threads, over_ranks
        from pyflow.context import DEFAULT_CTX
        from pyflow.engine import Described

        described = Described(name or options.default_model())
        most = described.spec.n_ctx_train
        size = options.context_size(n_ctx, most) or min(DEFAULT_CTX, most)
        self._check_layers(described)
        beside = self.stages or (self.world.n_here if self.world else 1)
        n_threads = n_threads or _threads_of_each(beside)
        with ExitStack() as stack:
            guesser = self._guesser(described, draft_models, n_threads, size)
            how: dict[str, Any] = {
                "strategy": self._strategy,
                "layers": by_count if self.layers is None else given(self.layers),
                "guesser": None if guesser is None else stack.enter_context(closing(guesser)),
                "n_threads": n_threads,
                "n_ctx": size,
                "cache_type": cache_type,
            }
            if self.stages is not None:
                yield stack.enter_context(in_threads(described, n_stages=self.stages, **how))
            else:
                self.is_open = True
                yield stack.enter_context(over_ranks(described, **how))

    def _check_layers(self, described: Described) -> None:
        """UsageError for --layers that are not those of the model, or not one per rank."""
        if self.layers is None:
            return
        n = described.spec.n_layers
        if sum(self.layers) != n:
            raise click.UsageError(
                f"--layers: expected {n} in all, as {described.name} has, found {sum(self.layers)}"
            )
        n = self.stages or (self.world.size if self.world else 1)
        if len(self.layers) != n:
            where = "stage" if self.stages else "rank"
            raise click.UsageError(
                f"--layers: expected {n} numbers, one per {where}, found {len(self.layers)}"
            )

    def _strategy(self, model: PipelinedModel) -> Strategy:
        """For a pipeline that is there."""
        return named(cast(str, self.name), model.n_stages, self.draft_len, **self.tuning)

    def _guesser(
        self, target: Described, draft_models: Sequence[str], n_threads: int, n_ctx: int
    ) -> Guesser | None:
        """Who guesses, to be closed; of draft models there is one at most."""
        if self.name == "iterative":
            return None
        if not draft_models:
            return LookupGuesser()
        from pyflow.engine import load
        from pyflow.speculate.draft_model import check_vocabulary

        draft = load(draft_models[0], n_threads=n_threads)
        check_vocabulary(target, draft)
        return ModelGuesser(draft, SamplingParams(seed=0), n_ctx)


def pipelines(function: F) -> F:
    """Adds the options; the command receives `pipeline: PipelineChoice` instead.

    It runs on rank 0 alone: the other ranks work for it, and leave with it.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        names = ("pipeline", "stages", "layers", "draft_len", *_TUNING)
        choice = _choice(**{name: options.pop(name) for name in names})
        if choice and options.get("numa"):
            raise click.UsageError(
                f"--numa is for one process, and {_FLAG} for several; start a rank per memory node"
            )
        if here.is_joined and (not choice or choice.stages is not None):
            raise click.UsageError(
                f"the ranks of 'cluster run' write one answer together: add {_FLAG} pipeinfer, and "
                "no --stages"
            )
        if not choice or choice.stages is not None:
            return function(*args, pipeline=choice, **options)
        from pyflow.cluster.mpi import dismiss
        from pyflow.cluster.world import world

        choice.world = world()
        if choice.world.size == 1:
            raise click.UsageError(
                f"{_FLAG} needs several stages: add --stages N, or start it by mpirun -n N"
            )
        if choice.world.rank > 0:
            return _serve(choice.world, options.get("model"), options.get("threads"))
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
    layers: list[int] | None,
    draft_len: int | None,
    **tuning: Any,
) -> PipelineChoice:
    """UsageError for options that do not go together."""
    used = {name: value for name, value in tuning.items() if value not in (None, False)}
    flags = ["--" + name.replace("_", "-") for name in used]
    if pipeline is None:
        others = {"--stages": stages, "--layers": layers, "--draft-len": draft_len}
        flags = [name for name, value in others.items() if value is not None] + flags
        if flags:
            raise click.UsageError(
                f"{flags[0]} is of no use without {_FLAG}; add {_FLAG} pipeinfer"
            )
    elif pipeline == "iterative" and draft_len is not None:
        raise click.UsageError(
            f"--draft-len is of no use to {_FLAG} iterative, which guesses nothing"
        )
    elif pipeline != "pipeinfer" and flags:
        raise click.UsageError(f"{flags[0]} is for {_FLAG} pipeinfer")
    fields = {_TUNING[n]: not v if n.startswith("no_") else v for n, v in used.items()}
    return PipelineChoice(pipeline, stages, layers, draft_len, fields)


def _serve(world: World, model: str | None, threads: Any) -> int:
    """On a rank other than 0: computes what the head sends, and says nothing."""
    from pyflow import _core
    from pyflow.cluster.mpi import serve

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the head's, which then ends the others
    n_threads = threads[0] if isinstance(threads, list) else threads
    pool = _core.ThreadPool(n_threads or _threads_of_each(world.n_here))
    try:
        path = model or options.default_model()
    except (click.UsageError, PyflowError):
        path = "smollm2"  # which is not there: the head tells so
    serve(path, pool=pool)
    return 0


def _threads_of_each(n: int) -> int:
    """The machine's threads, shared by n stages or ranks on it."""
    n_threads, _ = choose_threads(this_machine(), cgroup_cpus())
    return max(1, n_threads // n)
