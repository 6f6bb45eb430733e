"""A model in several stages, as the options of pipelines ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from pyflow.cli.options import ranks
from pyflow.cli.options.model import (
    context_size,
    default_model,
    printing_warnings,
    threads_of_each,
    warn_of_crowding,
)
from pyflow.cli.options.pipeline import AUTO, EVEN, PipelineOptions
from pyflow.cli.options.speculation import (
    HEADS,
    SpeculationOptions,
    check_layers,
    heads_of_pipeline,
    heads_of_stage,
)
from pyflow.cluster.run.strategy import named
from pyflow.cluster.supervise.lifeline import of_process
from pyflow.errors import UnsupportedError
from pyflow.speculate.methods import METHODS, unseen_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyflow import _core
    from pyflow.cluster.automatic import Automatic
    from pyflow.cluster.model import PipelinedModel
    from pyflow.cluster.mpi.groups import Roles
    from pyflow.cluster.mpi.layers import Splitter
    from pyflow.cluster.mpi.transport import World
    from pyflow.cluster.run.drafts import PipelineDrafter
    from pyflow.cluster.run.stage import ModelStage
    from pyflow.cluster.run.strategy import Strategy
    from pyflow.cluster.supervise.lifeline import Numbers
    from pyflow.engine.context import CacheType
    from pyflow.engine.model_files import ModelFiles
    from pyflow.engine.offload import StageDevice
    from pyflow.formats import Checkpoint, Overrides
    from pyflow.model import Model


@dataclass(slots=True)
class PipelineRun:
    """The pipeline of one command."""

    options: PipelineOptions
    speculation: SpeculationOptions
    allow_inexact: bool = False
    """Whether devices of ranks may have other results than the CPU."""
    serves: bool = False
    """Many users ask, one after the other."""
    world: World | None = None
    """The ranks; None if stages are in this process."""
    drafters: tuple[int, ...] = ()
    """The ranks that run draft models and nothing else."""
    adapters: Sequence[tuple[str, float]] = ()
    """Paths and factors, the same on all ranks."""
    layers: list[int] | str | None = field(init=False)
    n_members: int = field(default=1, init=False)
    """Ranks that share a stage."""
    has_lost_drafter: bool = field(default=False, init=False)
    """The rank of a draft model is gone: drafts come from the text."""
    automatic: Automatic | None = field(default=None, init=False)
    """Decides what the options leave open; set by `open`."""
    has_heads: bool = field(default=False, init=False)
    """The heads of a speculator draft."""
    is_open: bool = field(default=False, init=False)
    """The other ranks serve a pipeline."""

    def __post_init__(self) -> None:
        self.layers = self.options.layers

    def place(self, numbers: Numbers) -> None:
        """Finds the ranks of draft models by their first numbers.

        After a loss of ranks, layers are split anew. UsageError: --draft-rank is no rank.
        """
        n_models = len(self.speculation.drafts.draft_models)
        found = ranks.drafters(self.options.draft_ranks, numbers.n_first, n_models)
        present = [numbers.now(number) for number in found]
        self.has_lost_drafter = None in present
        self.drafters = () if self.has_lost_drafter else tuple(n for n in present if n is not None)
        if len(numbers.left) < numbers.n_first:
            self.layers = AUTO if isinstance(self.layers, list) else self.layers
            return  # stages of one rank: the layout no longer fits
        if self.options.layout is not None and self.options.layout != "auto":
            stages, self.n_members = self.options.layout
            n = len(numbers.left) - len(self.drafters)
            if n != stages * self.n_members:
                raise click.UsageError(
                    f"--layout {stages}x{self.n_members}: expected {stages * self.n_members} "
                    f"ranks with layers, found {n}"
                )

    @contextmanager
    def open(
        self,
        name: str | None,
        n_threads: int | None,
        quantize: str | None,
        overrides: Overrides | None,
        n_ctx: int | None,
        cache_type: CacheType,
    ) -> Iterator[PipelinedModel]:
        """The loaded model, freed in the end. n_threads: per stage. n_ctx: as the option says."""
        from pyflow.cluster.model import in_threads, over_ranks
        from pyflow.cluster.planning.members import shared_heads
        from pyflow.engine.context import DEFAULT_CTX
        from pyflow.engine.loaded import encoder_writes_nothing
        from pyflow.engine.model_files import ModelFiles

        with printing_warnings():
            files = ModelFiles(name or default_model(), quantize=quantize, overrides=overrides)
        if files.spec.is_encoder:
            raise UnsupportedError(encoder_writes_nothing(files.spec))
        drafts = self.speculation.drafts
        if files.spec.source and (drafts.draft_models or drafts.trained or self._by_trained):
            raise UnsupportedError(unseen_source(files))
        most = files.spec.n_ctx_train
        n_ctx = context_size(n_ctx, most) or min(DEFAULT_CTX, most)
        self._check_layers(files)
        if said := shared_heads(files.spec, self.n_members):
            click.echo(said, err=True)
        n_here = self.options.stages or (self.world.n_here if self.world else 1)
        warn_of_crowding(n_threads, n_here)
        n_threads = n_threads or threads_of_each(n_here)
        with ExitStack() as stack:
            drafter, strategy, layers = self._decided(files, n_threads, n_ctx, stack)
            make: Callable[..., PipelinedModel]
            if self.options.stages is not None:
                make = partial(in_threads, n_stages=self.options.stages)
            else:
                self.is_open = True
                make = partial(over_ranks, open_device=self.open_device, roles=self.roles)
            model = make(
                files,
                strategy=strategy,
                layers=layers,
                n_threads=n_threads,
                drafter=drafter,
                n_ctx=n_ctx,
                cache_type=cache_type,
                adapters=self.adapters,
            )
            yield stack.enter_context(model)

    @property
    def _layout(self) -> tuple[int, int] | Literal["auto"] | None:
        layout = self.options.layout
        if layout == "auto":
            return layout
        return None if self.n_members == 1 else layout

    @property
    def _by_trained(self) -> bool:
        """Whether the method needs a trained speculator."""
        method = METHODS.get(self.speculation.method)
        return method is not None and "trained" in method.needs

    @property
    def roles(self) -> Roles:
        """What ranks do: known to all of them before they meet."""
        from pyflow.cluster.mpi.groups import Roles

        return Roles(self.drafters, self._layout is not None)

    def open_device(self, checkpoint: Checkpoint) -> StageDevice | None:
        """The device that the file of hosts, or --gpu-rank, gives to this rank's layers."""
        drafts = self.world is not None and self.world.rank in self.drafters
        return device_of_rank(checkpoint, drafts=drafts, allow_inexact=self.allow_inexact)

    def open_heads(self, model: Path, stage: ModelStage) -> _core.Heads | None:
        """The heads that draft beside the last layers, on any rank; None: none do."""
        if self.options.strategy == "iterative":
            return None
        return heads_of_stage(self.speculation, model, stage)

    def _check_layers(self, files: ModelFiles) -> None:
        """UsageError: --layers does not fit the model, the stages or the ranks."""
        check_layers(files, self.speculation.drafts.draft_layers)
        if not isinstance(self.layers, list):
            return
        n = files.spec.n_layers
        if sum(self.layers) != n:
            raise click.UsageError(
                f"--layers: expected {n} in all, as {files.name} has, found {sum(self.layers)}"
            )
        n = self.options.stages or (self.world.size if self.world else 1)
        if self.n_members > 1:
            n = (n - len(self.drafters)) // self.n_members + len(self.drafters)
        if len(self.layers) != n:
            where = "stage" if self.options.stages or self.n_members > 1 else "rank"
            raise click.UsageError(
                f"--layers: expected {n} numbers, one per {where}, found {len(self.layers)}"
            )
        for rank in self.drafters if self.n_members == 1 else ():
            if self.layers[rank]:
                raise click.UsageError(
                    f"--layers: expected 0 for rank {rank}, which runs a draft model by "
                    f"--draft-rank, found {self.layers[rank]}"
                )

    def _decided(
        self, files: ModelFiles, n_threads: int, n_ctx: int, stack: ExitStack
    ) -> tuple[PipelineDrafter | None, Any, Splitter]:
        """The drafter, the strategy and the layers, or functions that choose these later."""
        from pyflow.cluster.automatic import Automatic
        from pyflow.cluster.model import N_BATCH
        from pyflow.cluster.planning.predict import Requests
        from pyflow.cluster.planning.profile import drafts_by
        from pyflow.cluster.run.drafts import MethodDrafter, by_lookup, by_models
        from pyflow.cluster.run.guesses import GuessesDrafter
        from pyflow.speculate.trained.find import first_layers

        drafts = self.speculation.drafts
        names = drafts.draft_models
        if self.has_lost_drafter:
            names = ()
            click.echo("the draft model's rank is lost: drafts come from the text", err=True)
        models: list[Model] = []
        if names and not self.drafters:
            opened = drafting_models(files, names, drafts.draft_layers, n_threads, drafts.draft_gpu)
            models = stack.enter_context(opened)
        trained = None
        if self.speculation.method == "kangaroo":
            below = first_layers(files, drafts.trained, drafts.exit_layer, n_threads)
            trained = stack.enter_context(below)
        made = self.speculation.for_pipeline(files, N_BATCH // 2, trained)
        drafter: PipelineDrafter | None = None
        if self.options.strategy != "iterative" and not self.drafters:
            n_vocab = files.spec.n_vocab
            if made is not None:
                drafter = MethodDrafter(made[0], made[1], n_ctx=n_ctx, n_vocab=n_vocab)
            elif models:
                drafter = by_models(models, n_ctx=n_ctx)
            else:
                self.has_heads = heads_of_pipeline(self.speculation, files) is not None
                alone = self.speculation.method in HEADS
                drafter = None if alone else by_lookup(n_ctx=n_ctx, n_vocab=n_vocab)
                if self.has_heads:
                    drafter = GuessesDrafter(partial(self.open_heads, files.path), drafter)
            assert drafter is not None
            stack.enter_context(closing(drafter))
        split = self._split()
        if split is not None and self.options.strategy != AUTO:
            return drafter, lambda model: self._strategy(model.n_stages), split
        # Only the largest draft model's time counts: what the smaller ones save is unknown.
        measured = drafts_by(
            models[-1] if models else None,
            n_asked=made[0].n_asked if made else 0,
            elsewhere=bool(self.drafters),
        )
        self.automatic = Automatic(
            make=None if self.options.strategy == AUTO else self._strategy,
            given=split,
            drafts=None if self.options.strategy == "iterative" else measured,
            tell=lambda line: click.echo(line, err=True),
            layout=self._layout,
            requests=Requests(n_batch=N_BATCH) if self.serves else None,
        )
        return drafter, self.automatic.strategy, self.automatic.layers

    def _split(self) -> Splitter | None:
        """The layers of each stage; None: measure first."""
        from pyflow.cluster.mpi.groups import Grouped

        split = self._split_of_groups()
        return split if split is None or self.n_members == 1 else Grouped(split, self.n_members)

    def _split_of_groups(self) -> Splitter | None:
        from pyflow.cluster.mpi.layers import by_count, given

        layers = self.layers or (EVEN if self.options.stages else AUTO)
        if isinstance(layers, list):
            return given(layers)
        return None if layers == AUTO else by_count

    def _strategy(self, n_stages: int) -> Strategy:
        options = self.options
        return named(options.strategy, n_stages, options.draft_len, **options.tuning)

    def drafter_name(self) -> str | None:
        """What drafts, for people; None: nothing does."""
        if self.options.strategy == "iterative":
            return None
        method = self.speculation.in_pipeline
        if method == "lookup" and self.has_heads:
            return "lookup and heads"
        if method != "draft":
            return method
        where = f" on rank {', '.join(map(str, self.drafters))}" if self.drafters else ""
        return ", ".join(self.speculation.drafts.draft_models) + where

    def as_dict(self, model: PipelinedModel) -> dict[str, Any]:
        """For JSON: layers and memory of each rank, and expected times if they were measured."""
        found: dict[str, Any] = {
            "layers": [len(held) for held in model.layers],
            "resident_nbytes": model.pipeline.resident_nbytes,
        }
        if any(model.devices):
            found["devices"] = model.devices
        if self.automatic is not None and (planned := self.automatic.planned):
            found["expected"] = {
                "token_ms": planned.token_ms,
                "run_ms": planned.run_ms,
                "ranks": [
                    {"host": part.profile.host, "run_ms": part.run_ms, "nbytes": part.nbytes}
                    for part in planned.parts
                ],
            }
        return found


def device_of_rank(
    checkpoint: Checkpoint, *, drafts: bool, allow_inexact: bool
) -> StageDevice | None:
    """The device that the supervisor has for this rank's layers. drafts: it holds none.

    Raises like `for_stage`.
    """
    from pyflow.engine.offload import for_stage

    gpu = of_process().gpu
    return for_stage(gpu, checkpoint, allow_inexact=allow_inexact) if gpu and not drafts else None


@contextmanager
def drafting_models(
    target: ModelFiles, names: Sequence[str], layers: Sequence[int], n_threads: int, gpu: str | None
) -> Iterator[list[Model]]:
    """The draft models of this process, freed in the end. layers: of self. gpu: their device."""
    from pyflow.engine.offload import all_layers
    from pyflow.model import load
    from pyflow.speculate.drafters.draft_model import check_vocabulary

    with ExitStack() as stack:
        models: list[Model] = []
        offload = all_layers(gpu)
        for name in names:
            if name == "self":
                draft = load(
                    target.path,
                    n_threads=n_threads,
                    quantize=target.checkpoint.pack_as,
                    overrides=target.checkpoint.overrides,
                    layers=layers,
                    offload=offload,
                )
            else:
                draft = load(name, n_threads=n_threads, offload=offload)
            models.append(stack.enter_context(draft))
            check_vocabulary(target, draft)
        yield models
