"""What the options of pipelines ask for, and the model as they want it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import click

from pyflow.cli.options import model as options
from pyflow.cli.options import ranks
from pyflow.cli.options.speculation import check_layers
from pyflow.cluster.mpi.layers import by_count, given
from pyflow.cluster.run.drafts import MethodDrafter, by_lookup, by_models
from pyflow.cluster.run.strategy import named
from pyflow.engine.topology import cgroup_cpus, choose_threads, this_machine

if TYPE_CHECKING:
    from pyflow.cli.options.speculation import SpecChoice
    from pyflow.cluster.automatic import Automatic
    from pyflow.cluster.model import PipelinedModel
    from pyflow.cluster.mpi.endpoint import World
    from pyflow.cluster.mpi.layers import Splitter
    from pyflow.cluster.run.drafts import PipelineDrafter
    from pyflow.cluster.run.strategy import Strategy
    from pyflow.cluster.supervise.lifeline import Numbers
    from pyflow.engine.model_files import ModelFiles
    from pyflow.engine.topology import NumaMode
    from pyflow.model import Model
    from pyflow.speculate.drafter import Method

AUTO, EVEN = "auto", "even"


@dataclass(slots=True)
class PipelineChoice:
    """What the options ask for."""

    name: str | None
    """None: no pipeline."""
    stages: int | None
    layers: list[int] | str | None
    draft_len: int | None
    tuning: dict[str, Any]
    """Fields of Strategy."""
    draft_ranks: Sequence[int] = ()
    """As the option has them."""
    world: World | None = None
    """The ranks, where stages are not in this process."""
    drafters: tuple[int, ...] = ()
    """The ranks that run draft models and nothing else."""
    has_lost_drafts: bool = False
    """A rank that ran one is not there any more: guesses come from the text."""
    automatic: Automatic | None = field(default=None, init=False)
    """Who has decided what the options do not, once the pipeline is there."""
    is_open: bool = field(default=False, init=False)
    """The other ranks have a pipeline to work for."""

    def __bool__(self) -> bool:
        return self.name is not None

    def place(self, numbers: Numbers, n_models: int) -> None:
        """Finds the ranks of draft models by what ranks were called at first. Where ranks have been
        lost, layers are shared out anew. UsageError for --draft-rank where there is no such rank.
        """
        found = ranks.drafters(self.draft_ranks, numbers.n_first, n_models)
        present = [numbers.now(number) for number in found]
        self.drafters = tuple(number for number in present if number is not None)
        self.has_lost_drafts = len(self.drafters) < len(found)
        if self.has_lost_drafts:
            self.drafters = ()
        if len(numbers.left) < numbers.n_first and isinstance(self.layers, list):
            self.layers = AUTO

    @contextmanager
    def model(
        self,
        name: str | None,
        n_threads: int | None,
        numa: NumaMode | None,
        *,
        quantize: str | None = None,
        n_ctx: int | None = None,
        cache_type: str = "f16",
        draft_models: Sequence[str] = (),
        spec: SpecChoice | None = None,
    ) -> Iterator[Model | PipelinedModel]:
        """The model, in one place or in several; loaded, and freed in the end.

        n_ctx: of a pipeline, as the option has it. n_threads: of each stage. spec: the method that
        guesses for one, unless that is a draft model or lookup.
        """
        if not self:
            with options.load(name, n_threads, numa, quantize=quantize) as model:
                yield model
            return
        from pyflow.cluster.model import N_BATCH, in_threads, over_ranks
        from pyflow.engine.context import DEFAULT_CTX
        from pyflow.engine.model_files import ModelFiles

        with options.telling_warnings():
            described = ModelFiles(name or options.default_model(), quantize=quantize)
        most = described.spec.n_ctx_train
        size = options.context_size(n_ctx, most) or min(DEFAULT_CTX, most)
        self._check_layers(described)
        beside = self.stages or (self.world.n_here if self.world else 1)
        options.tell_crowded(n_threads, beside)
        n_threads = n_threads or threads_of_each(beside)
        if self.has_lost_drafts:
            draft_models = ()
            click.echo("the draft model's rank is lost: guesses come from the text", err=True)
        draft_layers = [] if spec is None else spec.draft_layers
        check_layers(described, draft_layers)
        with ExitStack() as stack:
            models: list[Model] = []
            if draft_models and not self.drafters:
                opened = drafting_models(described, draft_models, draft_layers, n_threads)
                models = stack.enter_context(opened)
            made = None if spec is None else spec.made(described, N_BATCH // 2)
            drafter = None if self.drafters else self._drafter(described, models, made, size)
            how: dict[str, Any] = {
                **self._decided(models, made[0].n_asked if made else 0),
                "drafter": None if drafter is None else stack.enter_context(closing(drafter)),
                "n_threads": n_threads,
                "n_ctx": size,
                "cache_type": cache_type,
            }
            if self.stages is not None:
                yield stack.enter_context(in_threads(described, n_stages=self.stages, **how))
            else:
                self.is_open = True
                yield stack.enter_context(over_ranks(described, drafters=self.drafters, **how))

    def _check_layers(self, described: ModelFiles) -> None:
        """UsageError for --layers that are not those of the model, or not one per rank."""
        if not isinstance(self.layers, list):
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
        for rank in self.drafters:
            if self.layers[rank]:
                raise click.UsageError(
                    f"--layers: expected 0 for rank {rank}, which runs a draft model by "
                    f"--draft-rank, found {self.layers[rank]}"
                )

    def told_drafter(self, spec: SpecChoice) -> str | None:
        """Who guesses, in words for people; None where nobody does."""
        if self.name == "iterative":
            return None
        if spec.in_pipeline != "draft":
            return spec.in_pipeline
        where = f" on rank {', '.join(map(str, self.drafters))}" if self.drafters else ""
        return ", ".join(spec.draft_models) + where

    def as_dict(self, model: PipelinedModel) -> dict[str, Any]:
        """For JSON: how many layers and how much memory each rank has, and what is expected of that
        if it was measured."""
        found: dict[str, Any] = {
            "layers": [len(held) for held in model.layers],
            "resident_nbytes": model.pipeline.resident_nbytes,
        }
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

    def _decided(self, models: Sequence[Model], n_asked: int) -> dict[str, Any]:
        """Strategy and layers, or who decides about them when all ranks are there."""
        layers = self.layers or (EVEN if self.stages else AUTO)
        split: Splitter | None = by_count
        if isinstance(layers, list):
            split = given(layers)
        elif layers == AUTO:
            split = None
        if split is not None and self.name != AUTO:
            return {"strategy": lambda model: self._strategy(model.n_stages), "layers": split}
        from pyflow.cluster.automatic import Automatic
        from pyflow.cluster.planning.profile import drafts_by

        # The largest of several models at most: what the others save is not known.
        draft = models[-1] if models else None
        drafts = drafts_by(draft, n_asked=n_asked, elsewhere=bool(self.drafters))
        self.automatic = Automatic(
            make=None if self.name == AUTO else self._strategy,
            given=split,
            drafts=None if self.name == "iterative" else drafts,
            tell=lambda line: click.echo(line, err=True),
        )
        return {"strategy": self.automatic.strategy, "layers": self.automatic.layers}

    def _strategy(self, n_stages: int) -> Strategy:
        return named(cast(str, self.name), n_stages, self.draft_len, **self.tuning)

    def _drafter(
        self,
        model: ModelFiles,
        models: Sequence[Model],
        made: tuple[Method, int] | None,
        n_ctx: int,
    ) -> PipelineDrafter | None:
        """Who guesses, to be closed."""
        if self.name == "iterative":
            return None
        if made is not None:
            method, n_nodes = made
            return MethodDrafter(method, n_nodes, n_ctx=n_ctx, n_vocab=model.spec.n_vocab)
        if models:
            return by_models(models, n_ctx=n_ctx)
        return by_lookup(n_ctx=n_ctx, n_vocab=model.spec.n_vocab)


@contextmanager
def drafting_models(
    target: ModelFiles, names: Sequence[str], layers: Sequence[int], n_threads: int
) -> Iterator[list[Model]]:
    """Those that --draft-model names, with what they need in this process; freed in the end."""
    from pyflow.model import load
    from pyflow.speculate.drafters.draft_model import check_vocabulary

    with ExitStack() as stack:
        models: list[Model] = []
        for name in names:
            if name == "self":
                quantize = target.checkpoint.pack_as
                draft = load(target.path, n_threads=n_threads, quantize=quantize, layers=layers)
            else:
                draft = load(name, n_threads=n_threads)
            models.append(stack.enter_context(draft))
            check_vocabulary(target, draft)
        yield models


def threads_of_each(n: int) -> int:
    """The machine's threads, shared by n stages or ranks on it."""
    n_threads, _ = choose_threads(this_machine(), cgroup_cpus())
    return max(1, n_threads // n)
