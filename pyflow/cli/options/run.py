"""The model that a command runs and how: parsed once, opened once."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.group import tell_inexact
from pyflow.cli.options import model as models
from pyflow.cli.options.groups import F, Option, grouped, option
from pyflow.cli.options.pipeline import PipelineOptions
from pyflow.cli.options.pipeline_run import PipelineRun, drafting_models
from pyflow.cli.options.rules import Rule, is_given
from pyflow.cli.options.speculation import SpeculationOptions, uses_trained
from pyflow.cluster.supervise.lifeline import Numbers, of_process
from pyflow.errors import PyflowError, UnsupportedError

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel
    from pyflow.engine.context import CacheType
    from pyflow.engine.offload import Offload
    from pyflow.engine.topology import NumaMode
    from pyflow.formats import Overrides
    from pyflow.generate.any_model import AnyModel
    from pyflow.model import Model
    from pyflow.speculate import Speculator


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The model, where and how it runs. A command offers some of these options."""

    model: str | None = None
    models: Sequence[str] = ()
    """Several, of which `model` is the first."""
    threads: int | Sequence[int] | None = None
    """Several for commands that run once per number."""
    numa: NumaMode | None = None
    measures: bool = False
    """Whether the mode is measured unless it is given."""
    quantize: str | None = None
    overrides: Overrides | None = None
    offload: Offload | None = None
    adapters: Sequence[tuple[str, float]] = ()
    n_ctx: int | None = None
    """As the option says: 0 is the most."""
    cache_type: CacheType = "f16"
    speculation: SpeculationOptions | None = None
    pipeline: PipelineRun | None = None

    @property
    def n_threads(self) -> int | None:
        """The first number of threads."""
        if self.threads is None or isinstance(self.threads, int):
            return self.threads
        return self.threads[0]

    def name(self, model: AnyModel) -> str:
        """What to call a model: the name it was pulled by, else its own."""
        from pyflow import catalogue

        name = self.model or models.default_model()
        return name if name in {entry.name for entry in catalogue.models()} else model.name

    @contextmanager
    def open(self, *, writes: bool = True) -> Iterator[Model | PipelinedModel]:
        """The model, in one place or in several; freed in the end. writes: as for `load`."""
        if self.pipeline is None:
            with self.load(writes=writes) as model:
                yield model
            return
        pipelined = self.pipeline.open(
            self.model,
            self.n_threads,
            self.quantize,
            self.overrides,
            self.n_ctx,
            self.cache_type,
        )
        with pipelined as opened:
            tell_inexact(opened.inexact)
            yield opened

    def load(
        self, name: str | None = None, *, writes: bool = True, continues: bool = False
    ) -> Model:
        """The model in one place, or the model `name` in the same way.

        writes: the command needs a model that writes. continues: it needs one that goes on from a
        text. UnsupportedError: it is an encoder, or reads a source.
        """
        loaded = models.load(
            name or self.model,
            self.n_threads,
            self.numa or ("auto" if self._may_share else None),
            quantize=self.quantize,
            overrides=self.overrides,
            offload=self.offload and replace(self.offload, n_ctx=self.n_ctx or None),
            adapters=self.adapters,
            writes=writes,
        )
        if continues and loaded.spec.source is not None:
            from pyflow.engine.sources import reads_sources

            raise UnsupportedError(reads_sources(loaded.spec))
        return loaded

    @property
    def _may_share(self) -> bool:
        """Whether members could do all that is asked: trained speculators need a whole head."""
        method = "none" if self.speculation is None else self.speculation.method
        return self.measures and (method == "none" or not uses_trained([method]))

    @contextmanager
    def speculator(self, model: AnyModel) -> Iterator[Speculator | None]:
        """Drafts for a model in one place, whose draft models and texts are freed in the end; None
        if none is asked for, or for a pipeline, which has its own."""
        from pyflow.model import Model

        options = self.speculation
        if options is None or options.method == "none" or not isinstance(model, Model):
            yield None
            return
        with options.speculators(model, [options.method]) as (speculator,):
            yield speculator

    def context_size(self, model: AnyModel) -> int | None:
        """The size of a context; None: the default, or a pipeline's own."""
        if self.pipeline is not None:
            return None
        return models.context_size(self.n_ctx, model.spec.n_ctx_train)


def _adapters(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    """Paths with their factors: PATH, or PATH=FACTOR."""
    found = []
    for given in value:
        path, equals, factor = given.rpartition("=")
        if not equals or Path(given).exists():
            path, factor = given, "1"
        try:
            found.append((path, float(factor)))
        except ValueError:
            raise click.BadParameter(
                f"expected PATH or PATH=FACTOR, found {given!r}", ctx, param
            ) from None
    return tuple(found)


adapters = option(
    "--lora adapters",
    "An adapter beside the model: a folder of PEFT, or a GGUF file for a model in GGUF. It counts"
    " FACTOR times, or once. May be given several times.",
    metavar="PATH[=FACTOR]",
    multiple=True,
    callback=_adapters,
)
NO_ADAPTERS = Rule("--lora", forbids=["--gpu-layers"], advice="they run on the CPU")


def _run(
    *,
    speculation: SpeculationOptions | None = None,
    pipeline: PipelineOptions | None = None,
    measures: bool = False,
    serves: bool = False,
    **values: Any,
) -> RunOptions:
    if models := values.get("models"):
        values["model"] = models[0]
    pipelined = None
    if pipeline is not None and speculation is not None:
        pipelined = PipelineRun(
            pipeline,
            speculation,
            is_given("gpu_inexact"),
            serves=serves,
            adapters=values.get("adapters", ()),
        )
    return RunOptions(speculation=speculation, pipeline=pipelined, measures=measures, **values)


def run_options(*options: Option, measures: bool = False, serves: bool = False) -> Callable[[F], F]:
    """Adds options of a run to a command, which receives `run: RunOptions` in their place."""
    rules = [NO_ADAPTERS] if adapters in options else []
    made = functools.partial(_run, measures=measures, serves=serves)
    return grouped("run", made, *options, rules=rules, topic="model")


def run_with_pipelines(*options: Option, serves: bool = False) -> Callable[[F], F]:
    """The same with the options of speculation and pipelines among them. serves: many users, whose
    requests count more than the speed of one.

    Over ranks, the command runs on rank 0 alone: the other ranks serve it, and end with it.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, run: RunOptions, **values: Any) -> Any:
            pipeline = run.pipeline
            stages = None if pipeline is None else pipeline.options.stages
            if of_process().is_supervised and (pipeline is None or stages is not None):
                raise click.UsageError(
                    "the ranks of 'cluster run' write one answer together: "
                    + ("add --pipeline auto" if pipeline is None else "leave --stages out")
                )
            if pipeline is None or stages is not None:
                return function(*args, run=run, **values)
            return _over_ranks(pipeline, run, lambda: function(*args, run=run, **values))

        return run_options(*options, measures=True, serves=serves)(wrapper)  # type: ignore[return-value]

    return decorate


def _over_ranks(pipeline: PipelineRun, run: RunOptions, command: Callable[[], Any]) -> Any:
    """Runs the command on rank 0, and serves it on the other ranks."""
    from pyflow.cluster.mpi.pipeline import dismiss
    from pyflow.cluster.mpi.transport import is_launched, world

    alone = click.UsageError(
        "--pipeline needs several stages: add --stages N for threads of this process, or start it"
        " by 'pyflow cluster run' or mpirun -n N"
    )
    if not is_launched():
        raise alone
    pipeline.world = world()
    # All ranks must come to the same result here, before they wait for one another.
    pipeline.place(of_process().numbers or Numbers.all(pipeline.world.size))
    if pipeline.world.size == 1 and not of_process().is_supervised:
        raise alone
    if pipeline.world.rank > 0:
        return _serve(pipeline, run)
    try:
        return command()
    finally:
        if not pipeline.is_open:
            dismiss()


def _serve(pipeline: PipelineRun, run: RunOptions) -> int:
    """Works for rank 0, and prints nothing."""
    from pyflow import _core, catalogue
    from pyflow.cluster.mpi.pipeline import serve
    from pyflow.cluster.run.stage import Beside, ModelStage
    from pyflow.engine.model_files import ModelFiles

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles it, and then ends the others
    world, drafters = pipeline.world, pipeline.drafters
    assert world is not None
    n_threads = run.n_threads or models.threads_of_each(world.n_here)
    try:
        path = run.model or models.default_model()
    except (click.UsageError, PyflowError):
        path = "smollm2"  # it is missing, and rank 0 reports that
    drafts = pipeline.speculation.drafts

    def open_drafts() -> AbstractContextManager[list[Model]]:
        names = drafts.draft_models
        own = names if len(drafters) == 1 else [names[drafters.index(world.rank)]]
        files = ModelFiles(path, quantize=run.quantize, overrides=run.overrides)
        gpu = of_process().gpu or drafts.draft_gpu
        return drafting_models(files, own, drafts.draft_layers, n_threads, gpu)

    def open_heads(stage: ModelStage) -> _core.Heads | None:
        return pipeline.open_heads(catalogue.resolve(path), stage)

    serve(
        path,
        pool=_core.ThreadPool(n_threads),
        make=functools.partial(ModelStage, beside=Beside(open_heads, run.adapters)),
        quantize=run.quantize,
        overrides=run.overrides,
        roles=pipeline.roles,
        drafts=open_drafts if world.rank in drafters else None,
        open_device=pipeline.open_device,
    )
    return 0
