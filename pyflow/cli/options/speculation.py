"""The options of speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow._core import POLICIES
from pyflow.cli.options import inputs
from pyflow.cli.options import model as models
from pyflow.cli.options.finite import Finite, Whole
from pyflow.cli.options.groups import flag, grouped, option
from pyflow.cli.options.rules import Rule
from pyflow.speculate.entry import SIZES, Entry, Source, Speculation
from pyflow.speculate.methods import METHODS, made, speculator

if TYPE_CHECKING:
    from pyflow import _core
    from pyflow.cluster.run.stage import ModelStage
    from pyflow.engine.context import Policy
    from pyflow.engine.model_files import ModelFiles
    from pyflow.model import Model
    from pyflow.speculate import Speculator
    from pyflow.speculate.drafter import Method
    from pyflow.speculate.drafters.pool import NgramPool
    from pyflow.speculate.trained.files import Trained

_LOSSY = [name for name, promise in POLICIES.items() if promise == "lossy"]
SOURCES: dict[Source, str] = {
    "draft_models": "--draft-model",
    "pool": "--spec-pool",
    "trained": "--speculator",
}
"""The options of what methods draft from."""


def _spec(is_one: Callable[[Entry], object] = lambda _: True) -> list[str]:
    return [f"--spec {entry.name}" for entry in METHODS.values() if is_one(entry)]


def _drafts_from(source: Source) -> Callable[[Entry], bool]:
    return lambda entry: source in entry.needs + entry.uses


_BY_MODELS = _drafts_from("draft_models")
RULES = (
    *(
        rule
        for name in ("--spec-n-max", "--spec-tree", "--spec-policy", "--lossy")
        for rule in (
            Rule(name, forbids=["--pipeline"], advice="it is for one process"),
            Rule(name, needs=_spec(), advice="for example --spec auto"),
        )
    ),
    Rule("--pipeline iterative", forbids=["--draft-model", *_spec()], advice="it drafts nothing"),
    *(
        Rule(f"--spec {entry.name}", needs=[SOURCES[need]])
        for entry in METHODS.values()
        for need in entry.needs
        if need != "trained"  # which may lie beside the model
    ),
    Rule("--speculator", needs=_spec(_drafts_from("trained"))),
    Rule("--exit-layer", needs=["--speculator"]),
    Rule("--draft-model", needs=[*_spec(_BY_MODELS), "--pipeline"]),
    Rule("--draft-model", forbids=_spec(lambda entry: not _BY_MODELS(entry))),
    Rule("--draft-layers", needs=["--draft-model self"]),
    Rule("--draft-gpu", needs=["--draft-model"]),
    Rule("--draft-gpu", forbids=["--draft-model self"], advice="use --gpu-layers"),
    Rule("--spec-tree", needs=["--draft-model"]),
    Rule("--spec-pool", needs=_spec(_drafts_from("pool"))),
    Rule("--spec-pool and --spec auto", forbids=["--pipeline"], advice="use --spec pool"),
    Rule("--lookahead", needs=_spec(lambda entry: entry.sizes)),
    *(
        Rule(f"--spec-policy {name}", needs=["--lossy"], advice="it changes what is generated")
        for name in _LOSSY
    ),
    Rule("--lossy", needs=[f"--spec-policy {name}" for name in _LOSSY]),
    Rule("--spec-policy rejection", needs=["--spec draft"]),
)
_IN_PIPELINES = ("--spec", "--draft-model", "--draft-layers", "--spec-pool", "--lookahead")


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Numbers and ranges, as in 0-9,29."""
    found: set[int] = set()
    try:
        for part in [] if value is None else value.split(","):
            first, dash, last = part.partition("-")
            found.update(range(int(first), int(last if dash else first) + 1))
            if dash and int(last) < int(first):
                raise ValueError
    except ValueError:
        raise click.BadParameter(
            f"expected layers such as 0-9,29, found {value!r}", ctx, param
        ) from None
    return sorted(found)


def _sizes(entry: Entry, text: str) -> dict[str, Any]:
    """The numbers of a method from `--lookahead`, as many as its entry lists."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != len(entry.sizes):
        raise click.UsageError(
            f"--lookahead: expected {_form(entry)} for --spec {entry.name}, found {text!r}"
        )
    for size, n in zip(entry.sizes, found, strict=True):
        if n not in SIZES[size]:
            least, most = SIZES[size][0], SIZES[size][-1]
            raise click.UsageError(f"--lookahead: {size}: expected {least} to {most}, found {n}")
    return dict(zip(map(str, entry.sizes), found, strict=True))


def _form(entry: Entry) -> str:
    """The sizes of a method and their defaults, as in `window,ngram,guesses (7,5,7)`."""
    defaults = ",".join(str(getattr(Speculation(), size)) for size in entry.sizes)
    return f"{','.join(entry.sizes)} ({defaults})"


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = () if value is None else tuple(value.split(","))
    if not all(names):
        raise click.BadParameter(
            f"expected MODEL, or several separated by commas, found {value!r}", ctx, param
        )
    return names


def draft_models_option(text: str) -> Any:
    return option("--draft-model draft_models", text, metavar="MODEL[,MODEL]", callback=_names)


draft_layers = option(
    "--draft-layers",
    "Layers that self runs as a draft model, as in 0-9,29.  [default: all]",
    metavar="LAYERS",
    callback=_layers,
)


HEADS = ("mlp", "medusa")
"""Methods whose guesses the last stage of a pipeline makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What methods draft from: other models, and a text."""

    draft_models: tuple[str, ...] = ()
    draft_layers: Sequence[int] = ()
    """Layers of the model itself that run, if it drafts."""
    draft_gpu: str | None = None
    """The device of the other models."""
    pool: str | None = None
    """The path of a text."""
    trained: str | None = None
    """The path of a trained one; None: what lies beside the model."""
    exit_layer: int | None = None
    """Of a Kangaroo adapter that does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """The method that drafts, and its settings."""

    drafts: Drafts
    method: str = "none"
    n_max: int = 0
    p_split: float = 1.0
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of the method that differ from the defaults."""
    policy: Policy = "exact"

    @property
    def in_pipeline(self) -> str:
        """The method that drafts for a pipeline."""
        if self.method not in ("none", "auto"):
            return self.method
        return "draft" if self.drafts.draft_models else "lookup"

    @contextmanager
    def speculators(self, target: Model, methods: Sequence[str]) -> Iterator[list[Speculator]]:
        """One for each method, with the same draft models and text."""
        with ExitStack() as stack:
            drafts = stack.enter_context(_draft_models(target, self.drafts))
            trained = _trained(target, self.drafts, methods) if uses_trained(methods) else None
            options = replace(self._options(target), draft_models=drafts, trained=trained)
            yield [
                stack.enter_context(speculator(target, replace(options, method=name)))
                for name in methods
            ]

    def for_pipeline(
        self, model: ModelFiles, n_rows: int, trained: Trained | None
    ) -> tuple[Method, int] | None:
        """The method that drafts for a pipeline, and the most nodes of its trees.

        None: draft models, lookup or heads, which a pipeline makes by itself. UsageError for a
        window of more rows than n_rows, which a run has for drafts. trained: for kangaroo.
        """
        if self.in_pipeline in ("draft", "lookup", *HEADS):
            return None
        (method,), n_nodes = made(model, replace(self._options(model), trained=trained))
        if method.n_asked > n_rows:
            raise click.UsageError(
                f"--lookahead: expected a window of at most {n_rows} rows with --pipeline, found "
                f"{method.n_asked}; take smaller numbers"
            )
        return method, n_nodes

    def _options(self, model: ModelFiles) -> Speculation:
        return Speculation(
            method=self.method,
            n_max=self.n_max,
            p_split=self.p_split,
            pool=None if self.drafts.pool is None else _ngram_pool(model, self.drafts.pool),
            policy=self.policy,
            **self.sizes,
        )


@contextmanager
def _draft_models(target: Model, drafts: Drafts) -> Iterator[list[tuple[Model, Sequence[int]]]]:
    """The draft models and their layers, on the threads and memory nodes of the target."""
    from pyflow.engine.offload import all_layers

    check_layers(target, drafts.draft_layers)
    with ExitStack() as stack:
        found: list[tuple[Model, Sequence[int]]] = []
        for name in drafts.draft_models:
            if name == "self":
                found.append((target, drafts.draft_layers))
            else:
                on = all_layers(drafts.draft_gpu)
                draft = models.load(name, target.n_threads, target.placement, offload=on)
                found.append((stack.enter_context(draft), ()))
        yield found


def heads_of_pipeline(options: SpeculationOptions, model: ModelFiles) -> Path | None:
    """The folder of the speculator whose heads draft in a pipeline; None: they do not.

    Raises as `find.heads`, and PyflowError if the method has no speculator.
    """
    from pyflow.speculate.trained import find

    method, drafts = options.method, options.drafts
    if drafts.draft_models or model.spec.source or method not in ("auto", *HEADS):
        return None
    kinds = HEADS if method == "auto" else (method,)
    path = find.heads(model, drafts.trained, kinds, is_wanted=method in HEADS)
    if path is None and method in HEADS:
        made(model, Speculation(method=method))  # says what is missing
    return path


def heads_of_stage(
    options: SpeculationOptions, model: Path, stage: ModelStage
) -> _core.Heads | None:
    """The same, loaded for the stage with the last layers of the model at that path."""
    from pyflow.speculate.trained import find

    method, drafts = options.method, options.drafts
    if drafts.draft_models or stage.spec.source or method not in ("auto", *HEADS):
        return None
    return find.heads_of_stage(model, stage, drafts.trained, is_wanted=method in HEADS)


def uses_trained(methods: Sequence[str]) -> bool:
    return any(map(_drafts_from("trained"), (METHODS[name] for name in methods)))


def _trained(target: Model, drafts: Drafts, methods: Sequence[str]) -> Trained | None:
    """The speculator that is named, or found."""
    from pyflow.speculate.trained import find

    is_wanted = any("trained" in METHODS[name].needs for name in methods)
    return find.load(target, drafts.trained, drafts.exit_layer, is_wanted=is_wanted)


def check_layers(model: ModelFiles, layers: Sequence[int]) -> None:
    """UsageError for --draft-layers that the model does not have."""
    n_layers = len(model.spec.layers)
    if beyond := [layer for layer in layers if layer >= n_layers]:
        raise click.UsageError(
            f"--draft-layers: {model.name} has layers 0 to {n_layers - 1}, found {beyond[0]}"
        )


def _ngram_pool(model: ModelFiles, path: str) -> NgramPool:
    from pyflow.speculate.drafters.pool import NgramPool

    tokens = model.tokenizer.encode(inputs.read(path))
    if not tokens:
        raise click.UsageError(f"--spec-pool: {path} is empty; expected a text to draft from")
    return NgramPool.from_tokens(tokens)


drafts = grouped(
    "drafts",
    Drafts,
    draft_models_option(
        "For draft and auto: a small model with the same vocabulary, or self; several with the "
        "smallest first."
    ),
    draft_layers,
    option(
        "--draft-gpu",
        "The device that draft models run on, as --gpu names it.  [default: the CPU]",
        metavar="DEVICE",
        callback=models.not_empty,
    ),
    option("--spec-pool pool", "A text whose phrases pool and auto draft.", metavar="FILE"),
    option(
        "--speculator trained",
        "A trained speculator, for mlp, medusa, kangaroo and auto.  [default: NAME.speculator"
        " beside NAME.gguf, or the one that comes with pyflow for the model, as for smollm2]",
        metavar="FOLDER",
    ),
    option(
        "--exit-layer",
        "Layers that run before a Kangaroo adapter, if its files do not say it.",
        type=Whole(1),
    ),
)
_method = option(
    "--spec method",
    "Draft tokens and verify several in one step; the text stays the same. auto takes the"
    " methods that pay, or none. With --pipeline, none and auto draft by the draft model,"
    " or by lookup; auto also by a speculator's heads.",
    type=click.Choice(["none", *METHODS]),
    default="none",
    short="Draft tokens, faster: auto, lookup, draft ...",
)
_SIZED = [entry for entry in METHODS.values() if entry.sizes]
_lookahead = option(
    "--lookahead",
    f"Sizes of the method: for {', for '.join(f'{one.name} {_form(one)}' for one in _SIZED)}.",
    metavar="N[,N...]",
)


def _chosen(
    *, method: str = "none", lookahead: str | None = None, lossy: bool = False, **values: Any
) -> SpeculationOptions:
    del lossy  # only allows some policies
    sizes = {} if lookahead is None else _sizes(METHODS[method], lookahead)
    return SpeculationOptions(method=method, sizes=sizes, **values)


speculation = grouped(
    "speculation",
    _chosen,
    _method,
    drafts,
    option(
        "--spec-n-max n_max",
        "Drafted tokens of a step at most; 0 leaves it to the method.",
        type=Whole(0, 160),
        default=0,
    ),
    option(
        "--spec-tree p_split",
        "Draft models branch at tokens of this probability or more; 1 drafts a chain.",
        type=Finite(0, 1),
        default=1.0,
        metavar="P",
    ),
    _lookahead,
    option(
        "--spec-policy policy",
        "How drafts are accepted: exact gives the tokens of plain decoding, rejection others "
        "of the same distribution; flexible and typical change it and need --lossy.",
        type=click.Choice([*POLICIES]),
        default="exact",
    ),
    flag("--lossy", "Allow a policy that changes what is generated."),
    rules=RULES,
    topic="speculation",
)
"""For commands that generate text."""


in_pipelines = grouped(
    "speculation",
    _chosen,
    _method,
    drafts,
    _lookahead,
    rules=[*(Rule(name, needs=["--pipeline"]) for name in _IN_PIPELINES), *RULES],
    topic="speculation",
)
"""For commands that speculate only with --pipeline."""
