"""`pyflow rm`: delete a pulled model."""

from __future__ import annotations

import click

from pyflow import catalogue
from pyflow.cli.options.groups import flag


@click.command("rm")
@click.argument(
    "name", metavar="NAME", type=click.Choice([entry.name for entry in catalogue.models()])
)
@flag("-y --yes", "Do not ask.")
def command(name: str, yes: bool) -> None:
    """Delete the pulled model NAME, or the rest of an interrupted pull."""
    if not yes:
        click.confirm(f"delete {catalogue.entry(name).path}?", abort=True, err=True)
    freed = catalogue.remove(name)
    click.echo(f"{name}: {freed / 1e6:.0f} MB freed", err=True)
