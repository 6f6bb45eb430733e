"""The options of pipelines: several stages, in threads or over ranks, write one answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click

from pyflow.cli.options import ranks
from pyflow.cli.options.finite import Finite, Whole
from pyflow.cli.options.groups import flag, grouped, option
from pyflow.cli.options.rules import Rule
from pyflow.cluster.run.strategy import NAMES
from pyflow.cluster.supervise.launcher import rank_of

AUTO, EVEN = "auto", "even"
_FLAG = "--pipeline"
_MAX_STAGES = 256
_PLACING = ("--stages", "--layers", "--layout", "--draft-len", "--draft-rank")
_TUNING = (
    *("--flight", "--p-accept", "--p-recovery", "--p-decay", "--redraft"),
    *("--no-cancel", "--no-continuous", "--no-partitions", "--no-async"),
)
RULES = (
    *(Rule(name, needs=[_FLAG], advice=f"for example {_FLAG} auto") for name in _PLACING),
    *(Rule(name, needs=[f"{_FLAG} pipeinfer"]) for name in _TUNING),
    Rule("--stages", forbids=["--draft-rank"], advice="stages are in one process"),
    Rule("--draft-len", forbids=[f"{_FLAG} iterative"], advice="it drafts nothing"),
    Rule("--draft-len", forbids=[f"{_FLAG} auto"], advice="auto chooses it; name a strategy"),
    Rule("--draft-rank", needs=["--draft-model"]),
    Rule("--layout", forbids=["--stages"], advice="members are ranks: use 'pyflow cluster run'"),
    Rule("--layout auto", forbids=["--layers"], advice="auto chooses both"),
    Rule("--numa", forbids=[_FLAG], advice="start a rank per memory node"),
    Rule(
        "--gpu-layers",
        forbids=[_FLAG],
        advice="gpu= in the file of hosts, or --gpu-rank of 'cluster run', gives a rank a device",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How stages write an answer together."""

    strategy: str
    """A name of strategies, or auto."""
    stages: int | None
    """Stages in this process; None: ranks, which are other processes."""
    layers: list[int] | str | None
    layout: tuple[int, int] | Literal["auto"] | None
    """Stages, and ranks that share each; auto: the fastest."""
    draft_len: int | None
    draft_ranks: Sequence[int]
    tuning: Mapping[str, float | bool]
    """Fields of Strategy."""


def _options(*, strategy: str | None, **values: Any) -> PipelineOptions | None:
    """None: no pipeline."""
    if strategy is None:
        return None
    own = {name: values.pop(name) for name in [*values] if name in PipelineOptions.__slots__}
    tuning = {
        name.removeprefix("no_"): False if name.startswith("no_") else value
        for name, value in values.items()
        if value
    }
    return PipelineOptions(strategy=strategy, tuning=tuning, **own)


def is_silent(args: Sequence[str]) -> bool:
    """Whether rank 0, which has the same command line, reports its errors in place of this rank."""
    return bool(rank_of(os.environ)) and any(arg.partition("=")[0] == _FLAG for arg in args)


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


def _layout(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | Literal["auto"] | None:
    if value is None or value == AUTO:
        return None if value is None else "auto"
    parts = value.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and 0 < len(part) < 5 for part in parts):
        raise click.BadParameter(
            f"expected auto, or stages x members as in 1x2 or 2x2, found {value!r:.40}",
            ctx,
            param,
        )
    stages, members = map(int, parts)
    if not (stages and members):
        raise click.BadParameter(f"expected at least 1x1, found {value}", ctx, param)
    return stages, members


def _switch(name: str, field: str, text: str) -> Any:
    return flag(f"{name} {field}", f"For pipeinfer: {text}")


def _share(name: str, field: str, text: str) -> Any:
    text = f"For pipeinfer: {text}  [default: 0]"
    return option(f"{name} {field}", text, type=Finite(0, 1), metavar="P")


pipelines = grouped(
    "pipeline",
    _options,
    option(
        f"{_FLAG} strategy",
        "Write with several stages, each of which holds some layers: threads (--stages), or "
        "the processes that mpirun has started. The text stays the same. iterative runs one token "
        "after the other; speculative runs drafts together with the token before them; pipeinfer "
        "runs drafts while other runs are in flight; auto measures, and chooses the fastest for "
        "each text by how the drafts of earlier texts were accepted.",
        type=click.Choice([*NAMES, AUTO]),
        short="Stages in threads or on other machines",
    ),
    option(
        "--stages",
        "With --pipeline: N stages in this process, each with its own -t threads.",
        type=Whole(1, _MAX_STAGES),
        metavar="N",
    ),
    option(
        "--layers",
        "Layers of each stage or rank, possibly 0, as in 10,8,6,6; even: as many for each; "
        "auto: measure for a second or two and take the fastest split that fits into memory."
        "  [default: auto for ranks, even for --stages]",
        metavar="N,...",
        callback=_layers,
    ),
    option(
        "--layout",
        "Over ranks: S stages, each shared by M ranks, which have some rows of every matrix and "
        "make each token faster; as in 1x2 or 2x2. --layers then counts stages. auto: measure, "
        "and take the fastest.",
        metavar="SxM|auto",
        callback=_layout,
    ),
    option(
        "--draft-len",
        "Drafted tokens at a time.  [default: speculative 4, pipeinfer 2]",
        type=Whole(1, 64),
        metavar="N",
    ),
    option(
        "--flight n_flight",
        "For pipeinfer: runs in flight at most.  [default: the stages and 2]",
        type=Whole(1, 1024),
        metavar="N",
    ),
    ranks.draft_ranks,
    _share("--p-accept", "least", "draft tokens that the drafter finds likelier than P."),
    _share("--p-recovery", "recovery", "add P to that for every draft of a chain."),
    _share("--p-decay", "decay", "subtract P for every time that nothing was drafted."),
    _switch("--redraft", "redrafts", "draft anew after each result, as published."),
    _switch("--no-cancel", "no_cancels", "finish runs that have become useless."),
    _switch("--no-continuous", "no_continuous", "draft only while no draft is in flight."),
    _switch("--no-partitions", "no_partitioned", "one set of cells for drafts."),
    _switch("--no-async", "no_asynchronous", "let results wait while a draft is made."),
    rules=RULES,
    topic="pipeline",
)
