"""The options of speculative decoding, which several commands share."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.finite import Finite
from pyflow.cli.options.model import F, is_given

if TYPE_CHECKING:
    from pyflow.engine.context import Policy
    from pyflow.engine.model_files import ModelFiles
    from pyflow.generate.any_model import AnyModel
    from pyflow.model import Model
    from pyflow.speculate import Speculator
    from pyflow.speculate.drafter import Method
    from pyflow.speculate.drafters.pool import NgramPool
    from pyflow.speculate.entry import Speculation

_NAMES = ["none", "auto", "draft", "lookup", "pool", "lookahead", "jacobi"]
_EXACT, _DISTRIBUTION, _LOSSY = ["exact"], ["rejection"], ["flexible", "typical"]
# What drafts in a pipeline besides draft models and lookup, which have ways of their own there.
_ASKING = ["pool", "lookahead", "jacobi"]
_WINDOWED = ["lookahead", "jacobi"]


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Numbers and ranges, as in 0-9,29."""
    if value is None:
        return []
    found: set[int] = set()
    try:
        for part in value.split(","):
            first, dash, last = part.partition("-")
            found.update(range(int(first), int(last if dash else first) + 1))
            if dash and int(last) < int(first):
                raise ValueError
    except ValueError:
        raise click.BadParameter(
            f"expected layers such as 0-9,29, found {value!r}", ctx, param
        ) from None
    return sorted(found)


def _three(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int, int]:
    try:
        w, n, g = (int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f"expected W,N,G such as 7,5,7, found {value!r}", ctx, param
        ) from None
    if not (1 <= w <= 64 and 2 <= n <= 16 and 1 <= g <= 64):
        raise click.BadParameter(
            f"expected W and G from 1 to 64 and N from 2 to 16, found {value!r}", ctx, param
        )
    return w, n, g


draft_model_option = click.option(
    "--draft-model",
    metavar="MODEL[,MODEL]",
    help="For draft and auto: a small model with the same vocabulary, or self; of several the "
    "smallest first.",
)
draft_layers_option = click.option(
    "--draft-layers",
    metavar="LAYERS",
    callback=_layers,
    help="Layers that self runs as a draft model, as in 0-9,29.  [default: all]",
)
pool_option = click.option(
    "--spec-pool", metavar="FILE", help="A text whose phrases the methods pool and auto draft."
)

_SPEC_OPTION = click.option(
    "--spec",
    type=click.Choice(_NAMES),
    default="none",
    help="Draft tokens and verify several in one step; the text stays the same. auto takes what "
    "pays, and nothing where nothing does. With --pipeline, none and auto draft by the draft "
    "model, or by lookup.",
)
_LOOKAHEAD_OPTION = click.option(
    "--lookahead",
    metavar="W,N,G",
    default="7,5,7",
    callback=_three,
    help="Lookahead's window, n-gram size and guesses; jacobi guesses W tokens.",
)

_OPTIONS = (
    _SPEC_OPTION,
    draft_model_option,
    draft_layers_option,
    click.option(
        "--spec-n-max",
        type=click.IntRange(0, 160),
        default=0,
        help="Drafted tokens of a step at most; 0 leaves it to the method.",
    ),
    click.option(
        "--spec-tree",
        type=Finite(0, 1),
        default=1.0,
        metavar="P",
        help="Draft models branch at tokens of this probability or more; 1 drafts a chain.",
    ),
    pool_option,
    _LOOKAHEAD_OPTION,
    click.option(
        "--spec-policy",
        type=click.Choice([*_EXACT, *_DISTRIBUTION, *_LOSSY]),
        default="exact",
        help="How drafts are accepted: exact gives the tokens of plain decoding, rejection others "
        "of the same distribution; flexible and typical change it and need --lossy.",
    ),
    click.option("--lossy", is_flag=True, help="Allow a policy that changes what is generated."),
)
# What pipelines have of them, the last option first.
_IN_PIPELINES = {
    "lookahead": _LOOKAHEAD_OPTION,
    "spec_pool": pool_option,
    "draft_layers": draft_layers_option,
    "draft_model": draft_model_option,
    "spec": _SPEC_OPTION,
}


@dataclass(frozen=True, slots=True)
class SpecChoice:
    """What the options ask for."""

    method: str
    draft_models: list[str]
    draft_layers: list[int]
    n_max: int = 0
    p_split: float = 1.0
    pool: str | None = None
    lookahead: tuple[int, int, int] = (7, 5, 7)
    policy: Policy = "exact"

    @property
    def in_pipeline(self) -> str:
        """The method that guesses in a pipeline."""
        if self.method in ("none", "auto"):
            return "draft" if self.draft_models else "lookup"
        return self.method

    @contextmanager
    def speculator(self, target: AnyModel) -> Iterator[Speculator | None]:
        """For the model; draft models and texts are loaded, and freed in the end."""
        from pyflow.model import Model

        if self.method == "none" or not isinstance(target, Model):  # a pipeline has its own
            yield None
            return
        with self.speculators(target, [self.method]) as (speculator,):
            yield speculator

    @contextmanager
    def speculators(self, target: Model, methods: Sequence[str]) -> Iterator[list[Speculator]]:
        """One for each method, with the same draft models and text."""
        from pyflow.speculate.methods import speculator

        with ExitStack() as stack:
            drafts = draft_models(target, self.draft_models, self.draft_layers)
            options = replace(self._options(target), draft_models=stack.enter_context(drafts))
            yield [
                stack.enter_context(speculator(target, replace(options, method=name)))
                for name in methods
            ]

    def made(self, model: ModelFiles, n_rows: int) -> tuple[Method, int] | None:
        """The method that guesses in a pipeline, and the nodes of its trees at most; None where
        that is a draft model or lookup, which have their own way.

        n_rows: what there is room for in a run. UsageError for a window that takes more.
        """
        if self.method not in _ASKING:
            return None
        from pyflow.speculate.methods import made

        (method,), n_nodes = made(model, self._options(model))
        if method.n_asked > n_rows:
            raise click.UsageError(
                f"--lookahead: a run of a pipeline has room for {n_rows} rows of a window, this "
                f"one has {method.n_asked}; take smaller numbers"
            )
        return method, n_nodes

    def _options(self, model: ModelFiles) -> Speculation:
        from pyflow.speculate.entry import Speculation

        w, n, g = self.lookahead
        return Speculation(
            method=self.method,
            n_max=self.n_max,
            p_split=self.p_split,
            window=w,
            ngram=n,
            guesses=g,
            pool=ngram_pool(model, self.pool) if self.pool else None,
            policy=self.policy,
        )


@contextmanager
def draft_models(
    model: Model, names: Sequence[str], layers: Sequence[int]
) -> Iterator[list[tuple[Model, Sequence[int]]]]:
    """Those that --draft-model names, each with its layers, on the threads and the
    memory nodes of the model; loaded, and freed in the end."""
    check_layers(model, layers)
    with ExitStack() as stack:
        drafts: list[tuple[Model, Sequence[int]]] = []
        for name in names:
            if name == "self":
                drafts.append((model, layers))
            else:
                draft = options.load(name, model.n_threads, model.placement)
                drafts.append((stack.enter_context(draft), ()))
        yield drafts


def check_layers(model: ModelFiles, layers: Sequence[int]) -> None:
    """UsageError for --draft-layers that the model has not."""
    n_layers = len(model.spec.layers)
    if beyond := [layer for layer in layers if layer >= n_layers]:
        raise click.UsageError(
            f"--draft-layers: {model.name} has layers 0 to {n_layers - 1}, found {beyond[0]}"
        )


def ngram_pool(model: ModelFiles, path: str) -> NgramPool:
    """The n-grams of the text that --spec-pool names."""
    from pyflow.speculate.drafters.pool import NgramPool

    tokens = model.tokenizer.encode(inputs.read(path))
    if not tokens:
        raise click.UsageError(f"--spec-pool: {path} is empty; expected a text to draft from")
    return NgramPool.from_tokens(tokens)


def model_names(draft_model: str | None) -> list[str]:
    """Those that --draft-model names; UsageError where a name is empty."""
    names = [] if draft_model is None else draft_model.split(",")
    if not all(names):
        raise click.UsageError(
            f"--draft-model: expected MODEL, or several with a comma between, found {draft_model!r}"
        )
    return names


def speculation(function: F) -> F:
    """Adds the options; the command receives `spec: SpecChoice` instead."""
    wrapper = _checked(function)
    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper


def pipeline_speculation(function: F) -> F:
    """The same for a command that drafts with --pipeline alone, and has no other options of it."""
    checked = _checked(function)

    @functools.wraps(checked)
    def wrapper(*args: Any, **given: Any) -> Any:
        if given["pipeline"] is None and (found := next(filter(is_given, _IN_PIPELINES), None)):
            flag = "--" + found.replace("_", "-")
            raise click.UsageError(f"{flag} is for --pipeline; add that")
        return checked(*args, **given)

    for option in _IN_PIPELINES.values():
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def _checked(function: F) -> F:
    """The command with a SpecChoice in place of the options; UsageError where they do not go
    together."""

    @functools.wraps(function)
    def wrapper(
        *args: Any,
        spec: str,
        draft_model: str | None,
        draft_layers: list[int],
        spec_pool: str | None,
        lookahead: tuple[int, int, int],
        spec_n_max: int = 0,
        spec_tree: float = 1.0,
        spec_policy: Policy = "exact",
        lossy: bool = False,
        **options: Any,
    ) -> Any:
        models = model_names(draft_model)
        pipeline = options.get("pipeline")
        if models and pipeline == "iterative":
            raise click.UsageError("--draft-model is of no use to --pipeline iterative")
        given = {
            "--spec-n-max": spec_n_max != 0,
            "--spec-tree": spec_tree != 1,
            "--spec-policy": spec_policy != "exact",
            "--lossy": lossy,
        }
        if pipeline == "iterative" and spec != "none":
            raise click.UsageError(f"--spec {spec} is of no use to --pipeline iterative")
        flag = next((name for name, there in given.items() if there), None)
        if pipeline and flag:
            raise click.UsageError(f"{flag} is for one process, and --pipeline for several")
        if spec_policy in _LOSSY and not lossy:
            raise click.UsageError(
                f"--spec-policy {spec_policy} changes what is generated; add --lossy to allow that"
            )
        if spec == "draft" and not models:
            raise click.UsageError("--spec draft needs --draft-model, a model or self")
        if models and spec not in ("draft", "auto") and not (pipeline and spec == "none"):
            raise click.UsageError(
                f"--draft-model is of no use to --spec {spec}; use draft or auto"
            )
        if draft_layers and "self" not in models:
            raise click.UsageError("--draft-layers is for --draft-model self")
        if spec == "pool" and spec_pool is None:
            raise click.UsageError("--spec pool needs --spec-pool FILE")
        if spec_pool is not None and spec not in (("pool",) if pipeline else ("pool", "auto")):
            advice = "pool" if pipeline else "pool or auto"
            raise click.UsageError(f"--spec-pool is of no use to --spec {spec}; use {advice}")
        if spec == "none" and flag:
            raise click.UsageError(f"{flag} is of no use without --spec; add --spec auto")
        if is_given("lookahead") and spec not in _WINDOWED:
            advice = " or ".join(_WINDOWED)
            raise click.UsageError(f"--lookahead is of no use to --spec {spec}; use {advice}")
        if spec_tree != 1 and not models:
            raise click.UsageError("--spec-tree is for draft models: add --draft-model")
        if lossy and spec_policy not in _LOSSY:
            raise click.UsageError(f"--lossy is for --spec-policy {' or '.join(_LOSSY)}")
        if spec_policy == "rejection" and spec != "draft":
            raise click.UsageError("--spec-policy rejection needs --spec draft")
        choice = SpecChoice(
            spec,
            models,
            draft_layers,
            spec_n_max,
            spec_tree,
            spec_pool,
            lookahead,
            spec_policy,
        )
        return function(*args, spec=choice, **options)

    return wrapper  # type: ignore[return-value]
