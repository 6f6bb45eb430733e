"""`pyflow list`: the models that can be pulled, and those that have been."""

from __future__ import annotations

import click

from pyflow import catalogue
from pyflow.cli.options.groups import flag
from pyflow.cli.terminal.output import print_json


@click.command("list")
@flag("--json as_json", "One JSON array on stdout.")
def command(as_json: bool) -> None:
    """List the models that `pyflow pull` knows, and where the pulled ones are."""
    entries = catalogue.models()
    if as_json:
        objects = [
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
        print_json(objects, indent=2)
        return
    rows = [("NAME", "SIZE", "LICENCE", "PULLED")]
    for entry in entries:
        where = str(entry.path) if entry.pulled else "no"
        rows.append((entry.name, f"{entry.nbytes / 1e6:.0f} MB", entry.licence, where))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())
