"""The options that say where the ranks of a cluster are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyflow.cluster.launcher import Place

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


def places(n_ranks: int | None, hosts: Path | None) -> list[Place]:
    """Where to start ranks; a usage error unless one of the options is given."""
    from pyflow.cluster.launcher import Place, places_of

    if (n_ranks is None) == (hosts is None):
        found = "neither" if hosts is None else "both"
        raise click.UsageError(f"expected -n N or --hosts FILE, found {found}")
    return [Place(None, n_ranks)] if n_ranks else places_of(hosts or "")
