"""`pyflow list`: the models that can be pulled, and those on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pyflow import catalogue, hub, stores
from pyflow.cli.options.groups import flag
from pyflow.cli.terminal.output import print_json
from pyflow.stores import Aside, Stored
from pyflow.text import printable, size


@click.command("list")
@flag("--local", "List models of ollama, LM Studio, llama.cpp and the hub's cache on this machine.")
@flag("-v --verbose", "With --local, also list what cannot be used, and why.")
@flag("--json as_json", "One JSON array on stdout; with --local, one object.")
def command(local: bool, verbose: bool, as_json: bool) -> None:
    """List the models that `pyflow pull` knows, where the pulled ones are, and what else was pulled
    from the hub or a URL.

    With --local: each model that other programs keep here, as -m takes it. Nothing in their stores
    is ever written or deleted.
    """
    if local:
        _local(verbose, as_json)
        return
    entries = catalogue.models()
    others = [*_pulled_urls(), *(one for one in stores.of_hub() if isinstance(one, Stored))]
    if as_json:
        known: list[dict[str, Any]] = [
            {
                "name": entry.name,
                "path": str(entry.path) if entry.pulled else None,
                "bytes": entry.nbytes,
                "licence": entry.licence,
                "pulled": entry.pulled,
                "description": entry.description,
            }
            for entry in entries
        ]
        print_json([*known, *map(_as_dict, others)], indent=2)
        return
    rows = [("NAME", "SIZE", "LICENCE", "PULLED")]
    for entry in entries:
        where = str(entry.path) if entry.pulled else "no"
        rows.append((entry.name, size(entry.nbytes), entry.licence, where))
    rows += [(one.name, size(one.nbytes), "", str(one.path)) for one in others]
    _print_table(rows)


def _pulled_urls() -> list[Stored]:
    return [Stored(str(one.url), one.path, one.nbytes) for one in hub.pulled_urls()]


def _local(verbose: bool, as_json: bool) -> None:
    found = list(stores.found())
    usable = [one for one in found if isinstance(one, Stored)]
    aside = [one for one in found if isinstance(one, Aside)]
    if as_json:
        print_json(
            {
                "models": [_as_dict(one) for one in usable],
                "aside": [{"path": str(one.path), "why": one.why} for one in aside],
            },
            indent=2,
        )
        return
    if usable:
        rows = [(one.name, size(one.nbytes), str(one.path)) for one in usable]
        _print_table([("-m NAME", "SIZE", "PATH"), *rows])
    else:
        click.echo("no models of ollama, LM Studio, llama.cpp or the hub are here", err=True)
    if verbose:
        for one in aside:
            click.echo(printable(f"left aside: {one.path}: {one.why}"), err=True)
    elif aside:
        click.echo(f"{len(aside)} more cannot be used; -v says why", err=True)


def _as_dict(one: Stored) -> dict[str, Any]:
    """The same keys as for a model of the catalogue."""
    return {
        "name": one.name,
        "path": str(one.path),
        "bytes": one.nbytes,
        "licence": None,
        "pulled": True,
        "description": None,
    }


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(printable(line.rstrip()))
