"""`pyflow rm`: delete a pulled model."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from pyflow import catalogue, hub, stores
from pyflow.cli.options.groups import flag
from pyflow.errors import FormatError, PyflowError
from pyflow.text import printable


@click.command("rm")
@click.argument("name", metavar="NAME")
@flag("-y --yes", "Do not ask.")
def command(*, name: str, yes: bool) -> None:
    """Delete the pulled model NAME, or the rest of an interrupted pull.

    NAME is a model of `pyflow list`, or the URL that it was pulled from. What lies in the hub's
    cache belongs to other programs too: 'hf cache rm' deletes it.
    """
    known = [entry.name for entry in catalogue.models()]
    if name in known:
        path = catalogue.entry(name).path
    else:
        url = _url(name, known)
        path = hub.folder_of(url)
    if not yes:
        _confirm(path)
    freed = catalogue.remove(name) if name in known else hub.remove_url(url)
    click.echo(f"{name}: {freed / 1e6:.0f} MB freed", err=True)


def _confirm(path: Path) -> None:
    """Asks; PyflowError where nobody answers."""
    try:
        click.confirm(f"delete {path}?", abort=True, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        click.echo(err=True)  # end the line of the question
        raise PyflowError("no answer was given; -y deletes without asking") from None


def _url(name: str, known: list[str]) -> hub.FileUrl:
    """The URL that a name is; UsageError for all else, which pyflow does not delete."""
    if name.lower().startswith(stores.PREFIXES):
        raise click.UsageError(
            f"{printable(name)}: is another program's; delete it by that program"
        )
    try:
        remote = hub.parse(name)
    except FormatError as error:
        raise click.UsageError(str(error)) from None
    if remote is None and hub.is_repo(name):
        remote = hub.parse_repo(name)
    if isinstance(remote, hub.FileUrl):
        return remote
    if remote is not None:
        raise click.UsageError(
            f"{name}: the hub's cache is shared with other programs; 'hf cache rm"
            f" model/{remote.repo}' deletes it, 'hf cache ls' shows all"
        )
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise click.UsageError(f"no model is called {printable(name)!r}; {hint}")
