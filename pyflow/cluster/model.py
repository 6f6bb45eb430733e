"""A model over the stages of a pipeline, used like one in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

from msgspec.structs import replace

from pyflow import _core
from pyflow.adapters import Given, KnownAdapters
from pyflow.arguments import whole
from pyflow.closing import Closing
from pyflow.cluster.mpi.groups import NO_ROLES, Grouped, Roles
from pyflow.cluster.mpi.handshake import check_ranges, hello
from pyflow.cluster.mpi.layers import Ranks, Splitter, by_count, placement
from pyflow.cluster.mpi.pipeline import MpiPipeline, dismiss
from pyflow.cluster.mpi.survey import survey_threads
from pyflow.cluster.planning.survey import Survey
from pyflow.cluster.run.drafts import PipelineDrafter
from pyflow.cluster.run.driver import Pipeline
from pyflow.cluster.run.guesses import heads_of
from pyflow.cluster.run.runner import PipelineRunner, StrategyChooser, check_sampling
from pyflow.cluster.run.stage import Beside, ModelStage, Sizes
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.run.threads import ThreadPipeline, local_groups
from pyflow.engine.context import CacheType, context_args
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.offload import OpenDevice, no_device
from pyflow.errors import PyflowError
from pyflow.generate import AnyModel, Options
from pyflow.generate.any_model import Run, asked_languages, check_fits
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.chat import ChatTemplate
    from pyflow.engine.session_file import SessionFile
    from pyflow.speculate import Speculator
    from pyflow.tokenizer import Tokenizer

# Sequences of cells for guesses.
N_PARTITIONS = 8
# Rows of a run at most: a prompt goes through the stages in such chunks, one behind the other.
# More than 128 rows do not make a matrix product faster per row.
N_BATCH = 128
# Options that are fixed when the stages are made.
_FIXED = ("n_ctx", "cache_type", "speculator", "session")


class TextOptions(TypedDict, total=False):
    """As for `PipelinedModel`."""

    n_ctx: int | None
    cache_type: CacheType
    adapters: Sequence[Given]


# Makes the stages; which layers each rank has.
Connect: TypeAlias = Callable[[Sizes], tuple[Pipeline, Sequence[range]]]
# Chooses a strategy, for the pipeline or for each job, once the pipeline is connected.
Choose: TypeAlias = Callable[["PipelinedModel"], Strategy | StrategyChooser]


class PipelinedModel(AnyModel, Closing):
    """Writes what `Model` writes, token for token, one prompt after the other.

    Tokenizer and chat template are in this process, weights where the stages are. Also a context
    manager: leaving it ends the pipeline.
    """

    def __init__(
        self,
        files: ModelFiles,
        connect: Connect,
        *,
        strategy: Strategy | Choose,
        n_threads: int = 1,
        drafter: PipelineDrafter | None = None,
        n_ctx: int | None = None,
        cache_type: CacheType = "f16",
        adapters: Sequence[Given] = (),
    ) -> None:
        """connect: makes the pipeline, with stages of these sizes. n_threads: of a stage.
        drafter: it is the caller's.
        n_ctx: of every text with its answer; None is 4096, or the model's limit where that is less.
        adapters: as for `load`; all stages have the same.

        Waits until all stages have loaded. Raises like `load`, and PyflowError for what stages say.
        """
        start = time.monotonic()
        self.files = files
        self._adapters = KnownAdapters(adapters) if adapters else None
        self.spec = files.spec
        self.path, self.metadata = files.path, files.metadata
        self.defaults = files.defaults
        self.n_ctx = context_args(self.spec, n_ctx, 1, N_BATCH, cache_type)["n_ctx"]
        self.cache_type, self.n_threads = cache_type, n_threads
        self.pipeline, self.layers = connect(
            {
                "n_ctx": self.n_ctx,
                "n_seq_max": N_PARTITIONS + 1,
                "n_batch": N_BATCH,
                "cache_type": cache_type,
            },
        )
        try:
            self.pipeline.reset(SamplingParams(seed=0))  # answered when they have loaded
            self.runner = PipelineRunner(
                self.pipeline,
                strategy if isinstance(strategy, Strategy) else strategy(self),
                drafter,
                n_ctx=self.n_ctx,
                n_batch=N_BATCH,
                n_partitions=N_PARTITIONS,
                window=self.spec.window,
                shifts=self._shifts(),
            )
            self.runner.adapters = self._adapters
        except BaseException:
            self.close()
            raise
        self.load_ms = files.load_ms + 1e3 * (time.monotonic() - start)

    @property
    def name(self) -> str:
        return self.files.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.files.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template, or None."""
        return self.files.chat_template

    @property
    def adapters(self) -> KnownAdapters | None:
        return self._adapters

    @property
    def devices(self) -> list[str]:
        """By rank, for people: of its layers; "": the CPU."""
        return [each.device for each in self.pipeline.hellos]

    @property
    def inexact(self) -> str:
        """The device whose results are not the CPU's; empty if there is none."""
        return next((each.inexact for each in self.pipeline.hellos), "")  # all are alike

    @property
    def n_stages(self) -> int:
        """Ranks that hold layers."""
        return sum(1 for held in self.layers if held)

    def run(self, lengths: Sequence[int], n_predict: int, options: Options) -> Run:  # noqa: ARG002
        """PyflowError also for the options that the stages have fixed, and for sampling that they
        cannot follow."""
        if wrong := next((name for name in _FIXED if options.get(name) is not None), None):
            raise PyflowError(f"{wrong}: a pipeline has its own since it was made; leave it out")
        check_sampling(options.get("sampling", self.defaults.sampling))
        start = asked_languages(self, options).beginning(self.spec, self.defaults)
        for length in lengths:
            if start is None:
                check_fits(length, self.n_ctx, self.spec.n_ctx_train)
            elif length > self.n_ctx:
                raise PyflowError(
                    f"the source has {length:,} tokens, the stages hold {self.n_ctx:,}; shorten "
                    "it, or take a larger context (-c, n_ctx)"
                )
        return Run(self.runner, [self.n_ctx] * len(lengths))

    def conversation(
        self,
        n_ctx: int | None = None,
        *,
        cache_type: CacheType = "f16",
        speculator: Speculator | None = None,
        session: SessionFile | None = None,
    ) -> Run:
        """The cache behind a `ChatSession`: the stages keep what it shares with the last text.

        PyflowError for sizes that are not the pipeline's, and for a session: cells stay on the
        ranks.
        """
        given = cache_type != self.cache_type or speculator or session
        if n_ctx not in (None, self.n_ctx) or given:
            raise PyflowError(
                f"chat: expected the pipeline's own n_ctx={self.n_ctx} and "
                f"cache_type={self.cache_type!r}, no speculator and no session"
            )
        return Run(self.runner, [self.n_ctx])

    def _shifts(self) -> bool:
        """Whether cells may move: not where positions have been learned."""
        native, whole_model = self.files.checkpoint.native, self.spec.stage()
        return _core.Stage(native, whole_model, _core.ThreadPool(1), load=False).shifts

    def close(self) -> None:
        """Ends the stages, wherever they are; idempotent."""
        self.pipeline.close()


def in_threads(
    model: ModelFiles | str | Path,
    *,
    strategy: Strategy | Choose,
    n_stages: int | tuple[int, int] = 2,
    layers: Sequence[range] | Splitter = by_count,
    n_threads: int | Sequence[int] = 1,
    drafter: PipelineDrafter | None = None,
    **texts: Unpack[TextOptions],
) -> PipelinedModel:
    """A model in stages of this process.

    n_stages: or also how many members share each. layers: of each stage, or what decides about
    them; this may also make groups of the stages, as of ranks, whose members are as fast as it
    says. n_threads: of each stage and member, or of all, in order.
    """
    n_stages, n_members = n_stages if isinstance(n_stages, tuple) else (n_stages, 1)
    n_ranks = whole("n_stages", n_stages, 1) * whole("n_members", n_members, 1)
    files = _files_of(model)
    threads = [n_threads] * n_ranks if isinstance(n_threads, int) else [*n_threads]
    if len(threads) != n_ranks:
        raise PyflowError(f"n_threads: expected {n_ranks} numbers, found {len(threads)}")

    def connect(sizes: Sizes) -> tuple[Pipeline, Sequence[range]]:
        own = hello(0, files.checkpoint)
        hellos = [replace(own, rank=i) for i in range(n_ranks)]

        def measure() -> Survey:
            return survey_threads(files.checkpoint, threads, sizes)

        split: Splitter = layers if callable(layers) else lambda _: placement(layers)
        if n_members > 1:
            split = Grouped(split, n_members)
        placed = placement(split(Ranks(hellos, files.spec, measure)))
        ranges = placed.layers
        check_ranges(ranges, hellos, files.spec.n_layers)
        sampling = SamplingParams(seed=0)  # until the first job
        groups = local_groups(
            files.checkpoint,
            files.spec,
            layers=ranges,
            groups=placed.groups,
            sampling=sampling,
            n_threads=threads,
            beside=Beside(heads_of(drafter), texts.get("adapters", ())),
            **sizes,
        )
        followers = [member for group in groups for member in group[1:]]
        return ThreadPipeline([group[0] for group in groups], followers), ranges

    return PipelinedModel(
        files,
        connect,
        strategy=strategy,
        n_threads=max(threads),
        drafter=drafter,
        **texts,
    )


def over_ranks(
    model: ModelFiles | str | Path,
    *,
    strategy: Strategy | Choose,
    layers: Sequence[range] | Splitter = by_count,
    n_threads: int = 1,
    drafter: PipelineDrafter | None = None,
    roles: Roles = NO_ROLES,
    open_device: OpenDevice = no_device,
    **texts: Unpack[TextOptions],
) -> PipelinedModel:
    """On rank 0: a model over all ranks that mpiexec has started, while the others `serve` it.

    layers: of each rank, or what decides about them. roles: of the ranks, as these `serve`.
    open_device: of this rank's layers. Should it fail, the other ranks end too.
    """
    is_connected = False
    try:
        files = _files_of(model)

        def connect(sizes: Sizes) -> tuple[Pipeline, Sequence[range]]:
            nonlocal is_connected
            is_connected = True
            beside = Beside(heads_of(drafter), texts.get("adapters", ()))
            pool = _core.ThreadPool(n_threads)
            pipeline = MpiPipeline(
                files.checkpoint,
                layers,
                pool=pool,
                roles=roles,
                open_device=open_device,
                make=partial(ModelStage, beside=beside),
                **sizes,
            )
            return pipeline, pipeline.layers

        return PipelinedModel(
            files,
            connect,
            strategy=strategy,
            n_threads=n_threads,
            drafter=drafter,
            **texts,
        )
    except BaseException:
        if not is_connected:
            dismiss()
        raise


def _files_of(model: ModelFiles | str | Path) -> ModelFiles:
    return model if isinstance(model, ModelFiles) else ModelFiles(model)
