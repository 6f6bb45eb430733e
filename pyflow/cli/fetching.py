"""Pulling models for people: what comes and why, its licence, and a bar."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pyflow import catalogue, hub
from pyflow.catalogue import Entry, Progress
from pyflow.errors import FormatError
from pyflow.text import printable, size

_LABELS = {
    "waiting": "waiting for another pull of the same model",
    "downloading": "downloading",
    "checking": "checking",
}
_SHOWN = 12  # quants that were not chosen

Wanted = Entry | hub.HubName | hub.FileUrl


def fetch(wanted: Wanted, *, force: bool = False) -> dict[str, Any]:
    """Pulls a model, with what it is, its licence and the progress on standard error.

    What `pull --json` prints: name, path, files, bytes, revision and licence.
    """
    if isinstance(wanted, Entry):
        return _from_index(wanted, force)
    if isinstance(wanted, hub.HubName):
        return _from_hub(wanted, force)
    return _from_url(wanted, force)


def offer(name: str) -> None:
    """Asks whether to pull a model that is named and not here, and pulls it."""
    try:
        catalogue.resolve(name)
        return
    except FormatError:
        pass
    known = [entry for entry in catalogue.models() if entry.name == name]
    try:
        wanted: Wanted | None = known[0] if known else hub.parse(name)
    except FormatError:
        return
    if wanted is not None and click.confirm(
        f"{printable(name)} is not on this machine; pull it now?", err=True
    ):
        fetch(wanted)


def parse(name: str) -> Wanted:
    """What `pyflow pull` is asked for; UsageError if that is nothing to pull."""
    known = {entry.name: entry for entry in catalogue.models()}
    if name in known:
        return known[name]
    try:
        if (remote := hub.parse(name)) is not None:
            return remote
        if "/" in name and not Path(name).exists():
            return hub.parse_repo(name)
    except FormatError as error:
        raise click.UsageError(str(error)) from None
    if Path(name).exists():
        repo = f"; hf:{name} names the repository of the hub" if hub.is_repo(name) else ""
        raise click.UsageError(f"{name!r} is on this machine already: use -m {name}{repo}")
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)};"
    raise click.UsageError(
        f"no model is called {printable(name)!r}; {hint} A repository of the hub is ORG/REPO"
    )


def _from_index(entry: Entry, force: bool) -> dict[str, Any]:
    _tell(f"{entry.description}, {size(entry.nbytes)}, licence: {entry.licence}")
    if entry.pulled and not force:
        _tell("already there, by its size; --force fetches and checks it again")
    with _progress() as show:
        path = catalogue.pull(entry.name, force=force, progress=show)
    return _object(entry.name, path, [path], None, entry.licence)


def _from_hub(name: hub.HubName, force: bool) -> dict[str, Any]:
    from pyflow.engine.memory import available_nbytes

    try:
        plan = hub.plan(name, available=available_nbytes(), told=_tell)
    except hub.UnreachableError as error:
        if force:
            raise
        there = hub.without_network(name, error)
        _tell("the hub cannot be reached; the model is there from an earlier pull")
        return _object(str(name), there.path, there.files, there.revision, None)
    repo, choice = plan.repo, plan.choice
    _tell(f"{name.repo} at {repo.commit[:8]}, licence: {repo.licence}")
    why = f": {choice.why}" if choice.why else ""
    shown = choice.main if len(choice.files) == 1 else f"{choice.main}, {len(choice.files)} files"
    _tell(f"{choice.label or 'model'} ({shown}, {_size(choice)}){why}")
    if choice.others:
        others = [f":{o.short} ({_size(o)})" for o in choice.others[:_SHOWN]]
        more = len(choice.others) - _SHOWN
        _tell(f"also there: {', '.join(others)}{f' and {more} more' if more > 0 else ''}")
    if choice.aside:
        _tell(f"left aside, no language model: {', '.join(choice.aside)}")
    if not plan.lacks() and not force:
        _tell("already there; --force fetches and checks it again")
    with _progress() as show:
        done = hub.fetch(plan, force=force, progress=show)
    return _object(str(name), done.path, done.files, done.revision, repo.licence)


def _from_url(url: hub.FileUrl, force: bool) -> dict[str, Any]:
    _tell(f"{url.file}, licence: not known for a single file; see where the URL is from")
    with _progress() as show:
        done = hub.fetch_url(url, force=force, progress=show, told=_tell)
    return _object(str(url), done.path, done.files, None, None)


def _object(
    name: str, path: Path, files: Sequence[Path], revision: str | None, licence: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "path": str(path),
        "files": [str(file) for file in files],
        "bytes": sum(file.stat().st_size for file in files),
        "revision": revision,
        "licence": licence,
    }


def _size(of: hub.Choice | hub.Quant) -> str:
    return "of unknown size" if of.nbytes is None else size(of.nbytes)


def _tell(text: str) -> None:
    click.echo(printable(text), err=True)


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, removed at the end."""
    console = Console(stderr=True)
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(_LABELS["downloading"], total=None, visible=False)

        def show(progress: Progress) -> None:
            bar.update(
                task,
                description=_LABELS[progress.stage],
                completed=progress.done,
                total=progress.total,
                visible=True,
            )

        yield show
