"""The options that say where the ranks of a cluster are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyflow.cluster.supervise.launcher import Place

n_ranks = click.option(
    "-n", "n_ranks", metavar="N", type=click.IntRange(1, 1024), help="Ranks here."
)
hosts = click.option(
    "--hosts",
    "hosts",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a machine per line, this one first; NODE:2 takes two ranks.",
)


def _several(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    parts = [] if value is None else value.split(",")
    if not all(part.removeprefix("-").isdecimal() and len(part) < 6 for part in parts):
        raise click.BadParameter(f"expected a rank, or 2,3 or -1, found {value!r}", ctx, param)
    return [int(part) for part in parts]


draft_ranks = click.option(
    "--draft-rank",
    "draft_ranks",
    metavar="R[,R]",
    callback=_several,
    help="With --draft-model, over ranks: the one that runs it and holds no layers, or one for "
    "each of several models and none of them 0; -1 is the last.  [default: 0, beside its layers]",
)


def drafters(given: Sequence[int], n_ranks: int, n_models: int) -> tuple[int, ...]:
    """The ranks that --draft-rank names, none where that is rank 0; UsageError for others than one
    for all models, or one for each of them."""
    if wrong := [rank for rank in given if not -n_ranks <= rank < n_ranks]:
        raise click.UsageError(
            f"--draft-rank: expected some of {n_ranks} ranks, {-n_ranks} to {n_ranks - 1}, found "
            f"{wrong[0]}"
        )
    found = tuple(rank % n_ranks for rank in given)
    if len(found) > 1 and (len(found) != n_models or len({0, *found}) <= len(found)):
        raise click.UsageError(
            "--draft-rank: expected one rank, or one for each draft model and none of them 0, "
            f"found {','.join(map(str, given))} for {n_models}"
        )
    return found if n_models and found != (0,) else ()


def places(n_ranks: int | None, hosts: Path | None) -> list[Place]:
    """Where to start ranks; a usage error unless one of the options is given."""
    from pyflow.cluster.supervise.launcher import Place, places_of

    if (n_ranks is None) == (hosts is None):
        found = "neither" if hosts is None else "both"
        raise click.UsageError(f"expected -n N or --hosts FILE, found {found}")
    return [Place(None, n_ranks)] if n_ranks else places_of(hosts or "")
