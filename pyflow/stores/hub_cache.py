"""The models in the hub's cache, whichever program pulled them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyflow.errors import PyflowError
from pyflow.formats.folders import main_file
from pyflow.formats.lookalikes import stand_in
from pyflow.hub.cache import RepoCache, repos
from pyflow.hub.choose import WEIGHTS
from pyflow.hub.listing import RemoteFile
from pyflow.hub.names import HubName
from pyflow.hub.pull import cached
from pyflow.hub.quants import quants
from pyflow.stores.stored import Aside, Stored


def models() -> Iterator[Stored | Aside]:
    """One per quant, or one per folder of weights; of each repository as it is at main, or at the
    only revision that is there."""
    for name, cache in repos():
        commit, shown = _revision(name, cache)
        if commit is None:
            if cache.folder.joinpath("snapshots").is_dir():
                yield Aside(cache.folder, "no revision of it is complete")
            continue
        files, broken = cache.files(commit)
        for path in broken:
            yield Aside(path, "a link to bytes that are gone")
        yield from _of_snapshot(shown, cache.snapshot(commit), files)
    for name, cache in repos():
        for path in sorted((cache.folder / "blobs").glob("*.incomplete")):
            yield Aside(path, f"a pull of {name.repo} that is not complete")


def _revision(name: HubName, cache: RepoCache) -> tuple[str | None, HubName]:
    if (commit := cache.commit(None)) is not None:
        return commit, name
    try:
        only = [path.name for path in (cache.folder / "snapshots").iterdir()]
    except OSError:
        only = []
    commit = cache.commit(only[0]) if len(only) == 1 else None
    return commit, HubName(name.repo, commit)


def _of_snapshot(
    name: HubName, snapshot: Path, files: list[RemoteFile]
) -> Iterator[Stored | Aside]:
    found = quants(files)
    labels = [quant.label for quant in found]
    for quant in found:
        unique = quant.label and labels.count(quant.label) == 1
        wanted = quant.label if unique else quant.files[0].name
        shown = name if len(found) == 1 else HubName(name.repo, name.revision, wanted)
        path = snapshot / quant.files[0].name
        yield _checked(Stored(str(shown), path, quant.nbytes or 0), path)
    if found:
        return
    if not any(file.name.endswith(WEIGHTS) for file in files):
        return  # only a tokenizer, or a model of another kind
    try:
        pulled = cached(name)
        main = pulled.path if pulled.path.is_file() else main_file(pulled.path)
    except (PyflowError, OSError) as error:
        yield Aside(snapshot, str(error))
    else:
        yield _checked(Stored(str(name), pulled.path, pulled.nbytes), main)


def _checked(model: Stored, main: Path) -> Stored | Aside:
    """The model, unless something else stands where the bytes of its main file should be."""
    try:
        found = stand_in(main)
    except OSError as error:
        return Aside(main, error.strerror or "cannot be read")
    return model if found is None else Aside(main, f"is {found}")
