"""The options that place the ranks of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import grouped, option
from pyflow.cli.options.rules import Rule

if TYPE_CHECKING:
    from pyflow.cluster.supervise.hosts import Place


# Ranks that one machine may be asked for: to try a cluster of sixteen, or a few for each CPU.
_FEW, _PER_CPU = 16, 4


def _places(
    n_ranks: int | None, hosts: Path | None, gpu_ranks: dict[int, str]
) -> list[Place] | None:
    """Where to start ranks; None: nowhere."""
    from pyflow.cluster.supervise.hosts import Place, places_of

    if n_ranks is not None:
        most = max(_FEW, _PER_CPU * (n_cpus := len(os.sched_getaffinity(0))))
        if n_ranks > most:
            raise click.UsageError(
                f"-n: expected at most {most} ranks on {n_cpus} CPUs, found {n_ranks}; --hosts "
                "FILE starts them on several machines"
            )
        if wrong := [rank for rank in gpu_ranks if rank >= n_ranks]:
            raise click.UsageError(
                f"--gpu-rank: expected ranks 0 to {n_ranks - 1}, found {wrong[0]}"
            )
        gpus = tuple(gpu_ranks.get(rank, "") for rank in range(n_ranks))
        return [Place(None, n_ranks, gpus if gpu_ranks else ())]
    return None if hosts is None else places_of(hosts)


def _devices(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[int, str]:
    found: dict[int, str] = {}
    for value in values:
        rank, _, gpu = value.partition("=")
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 6) or gpu.split() != [gpu]:
            raise click.BadParameter(
                f"expected a rank and a device without spaces, as in 1=0, found {value!r:.80}",
                ctx,
                param,
            )
        if int(rank) in found:
            raise click.BadParameter(
                f"expected one device for rank {int(rank)}, found {found[int(rank)]} and {gpu:.60}",
                ctx,
                param,
            )
        found[int(rank)] = gpu
    return found


places = grouped(
    "places",
    _places,
    option("-n n_ranks", "Ranks on this machine.", metavar="N", type=Whole(1)),
    option(
        "--hosts hosts",
        "A file with a machine per line, this one first; NODE:2 takes two ranks, gpu=0 behind that"
        " puts their layers on a device.",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    ),
    option(
        "--gpu-rank gpu_ranks",
        "With -n: the layers of rank R lie on this device, as --gpu names it; may be given several"
        " times.",
        metavar="R=DEVICE",
        multiple=True,
        callback=_devices,
    ),
    rules=[
        Rule("-n", forbids=["--hosts"]),
        Rule("--gpu-rank", needs=["-n"], advice="a line of the file has gpu=DEVICE"),
    ],
)


def _several(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    parts = [] if value is None else value.split(",")
    if not all(part.removeprefix("-").isdecimal() and len(part) < 6 for part in parts):
        raise click.BadParameter(f"expected a rank, or 2,3 or -1, found {value!r}", ctx, param)
    return [int(part) for part in parts]


draft_ranks = option(
    "--draft-rank draft_ranks",
    "With --draft-model, over ranks: the rank that runs it and holds no layers, or one "
    "rank for each of several models, not 0; -1 is the last.  [default: 0, beside its "
    "layers]",
    metavar="R[,R]",
    callback=_several,
)


def drafters(given: Sequence[int], n_ranks: int, n_models: int) -> tuple[int, ...]:
    """The ranks of --draft-rank without layers; empty if rank 0 drafts beside its layers.

    UsageError: neither one rank for all models nor one rank for each.
    """
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
