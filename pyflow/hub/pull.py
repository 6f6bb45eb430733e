"""Pulling a model from the hub: plan what is to come, then bring it into the hub's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pyflow.downloads import Progress, Report, check_disk, lock, os_errors
from pyflow.errors import FormatError, PyflowError
from pyflow.formats.folders import main_file
from pyflow.formats.lookalikes import stand_in
from pyflow.formats.side_files import read_text
from pyflow.hub.cache import VARIABLE, RepoCache, repos
from pyflow.hub.choose import WEIGHTS, Choice, choose
from pyflow.hub.listing import RemoteFile, Repo, describe, explained, nearest
from pyflow.hub.names import HubName
from pyflow.hub.session import RefusedError, Session, session
from pyflow.hub.transfer import Wanted, fill, locate, verify

_MOST_INDEX = 64 << 20  # bytes, as for reading the shards


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is in the hub's cache."""

    name: HubName
    path: Path
    """What to open: a file, or the folder of a snapshot."""
    files: tuple[Path, ...]
    nbytes: int
    revision: str
    """The commit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pull will bring."""

    hub: Session
    repo: Repo
    choice: Choice

    @property
    def cache(self) -> RepoCache:
        return RepoCache.of(self.repo.name.repo)

    def lacks(self) -> list[RemoteFile]:
        """Files that are not in the cache yet."""
        snapshot = self.cache.snapshot(self.repo.commit)
        return [f for f in self.choice.files if not _is_whole(snapshot / f.name, f.nbytes)]

    def pulled(self) -> Pulled:
        return _pulled(self.repo.name, self.cache, self.repo.commit, self.choice)


def plan(name: HubName, *, available: int, told: Callable[[str], None] = lambda _: None) -> Plan:
    """What a pull of `name` will bring. Reads the repository's listing, and the index of shards.

    available: bytes of memory that are free, to choose a quant where none is asked for. told: gets
    a line before each wait, also while the plan is fetched.
    PyflowError: no such repository or model, or no access. ResourceError: no quant fits.
    """
    hub = session(told)
    with os_errors(VARIABLE):
        repo = describe(hub, name)
        cache = RepoCache.of(name.repo)

        def read(file: RemoteFile) -> str:
            path = _brought(hub, repo, cache, file, lambda _: None)
            return read_text(path, max_nbytes=_MOST_INDEX)

        return Plan(hub, repo, choose(name, repo.files, read, available=available))


def fetch(todo: Plan, *, force: bool = False, progress: Report | None = None) -> Pulled:
    """Brings the files that the cache lacks, each checked by its hash; `force` brings all again.

    An interrupted pull goes on with the bytes that have come. PyflowError: no access or connection.
    FormatError: other bytes came than the hub promised, or it has a pointer or a page where weights
    should be. ResourceError: the disk is too full.
    """
    report = progress or (lambda _: None)
    repo, cache = todo.repo, todo.cache
    wanted = list(todo.choice.files) if force else todo.lacks()
    total = sum(file.nbytes or 0 for file in wanted)
    with os_errors(VARIABLE):
        check_disk(
            cache.folder, _to_come(cache, wanted, force), what=repo.name.repo, variable=VARIABLE
        )
        done = 0
        for file in wanted:

            def tell(one: Progress, before: int = done) -> None:
                report(Progress(one.stage, before + one.done, max(total, before + one.done)))

            _brought(todo.hub, repo, cache, file, tell, force=force)
            done += file.nbytes or 0
        cache.refer(repo.name.revision or "main", repo.commit)
    pulled = todo.pulled()
    for path in pulled.files:
        if path.name.endswith((*WEIGHTS, ".gguf")) and (found := stand_in(path)):
            raise FormatError(
                f"{repo.name}: {path.name}: the hub has {found.partition(';')[0]}, expected the "
                "weights; tell the owner of the repository, or pull another one"
            )
    return pulled


def cached(name: HubName) -> Pulled:
    """The model of a name in the hub's cache, without network. FormatError: it is not there."""
    cache = RepoCache.of(name.repo)
    commit = cache.commit(name.revision)
    files, _ = cache.files(commit) if commit else ([], [])
    pull = f"run 'pyflow pull {name}'"
    if commit is None or not files:
        near = nearest(name, [other.repo for other, _ in repos()])
        raise FormatError(
            f"{name}: is not pulled yet; {f'did you mean {near}? ' if near else ''}{pull}"
        )
    snapshot = cache.snapshot(commit)

    def read(file: RemoteFile) -> str:
        return read_text(snapshot / file.name, max_nbytes=_MOST_INDEX)

    try:
        choice = choose(name, files, read)
    except FormatError as error:
        raise FormatError(
            f"in the cache of the hub: {error}; {pull} for what the hub has"
        ) from None
    return _pulled(name, cache, commit, choice)


def _pulled(name: HubName, cache: RepoCache, commit: str, choice: Choice) -> Pulled:
    snapshot = cache.snapshot(commit)
    paths = tuple(snapshot / file.name for file in choice.files)
    main = snapshot / choice.main
    return Pulled(
        name=name,
        path=_folder_of(main) if choice.is_folder else main,
        files=paths,
        nbytes=sum(path.stat().st_size for path in paths),
        revision=commit,
    )


def _folder_of(main: Path) -> Path:
    """The folder, if it opens as `main`; another program may have left other weights there."""
    try:
        return main.parent if main_file(main.parent) == main else main
    except FormatError:
        return main


def _is_whole(path: Path, nbytes: int | None) -> bool:
    """Whether the file is there with all its bytes; its hash was checked when it came."""
    return path.is_file() and nbytes in (None, path.stat().st_size)


def _to_come(cache: RepoCache, files: Sequence[RemoteFile], force: bool) -> int:
    """Bytes of disk that a pull takes."""
    total = 0
    for file in files:
        total += file.nbytes or 0
        if file.sha256 is not None and not force:
            for path in (cache.blob(file.sha256), cache.growing(file.sha256)):
                if path.is_file():
                    total -= min(path.stat().st_size, file.nbytes or 0)
                    break
    return total


def _brought(
    hub: Session,
    repo: Repo,
    cache: RepoCache,
    file: RemoteFile,
    report: Report,
    *,
    force: bool = False,
) -> Path:
    """The file in the cache, fetched unless it is there."""
    path = cache.snapshot(repo.commit) / file.name
    if _is_whole(path, file.nbytes) and not force:
        return path
    url = f"{hub.endpoint}/{repo.name.repo}/resolve/{repo.commit}/{quote(file.name)}"
    try:
        wanted = locate(hub, url, file)
        total = wanted.nbytes or 0
        with lock(cache.lock_path(wanted.etag), lambda: report(Progress("waiting", 0, total))):
            if force or not _is_whole(cache.blob(wanted.etag), wanted.nbytes):
                _transfer(hub, cache, wanted, report, force=force)
            return cache.link(repo.commit, file.name, wanted.etag)
    except RefusedError as error:
        raise explained(error, hub, repo.name) from None


def _transfer(
    hub: Session, cache: RepoCache, wanted: Wanted, report: Report, *, force: bool
) -> None:
    growing, total = cache.growing(wanted.etag), wanted.nbytes or 0
    growing.parent.mkdir(parents=True, exist_ok=True)
    if force:
        growing.unlink(missing_ok=True)
    fill(hub, wanted, growing, lambda done: report(Progress("downloading", done, total)))
    verify(wanted, growing, lambda done: report(Progress("checking", done, total)))
    growing.replace(cache.blob(wanted.etag))


def without_network(name: HubName, why: PyflowError) -> Pulled:
    """The model in the cache, for want of the hub; raises `why` if it is not there."""
    try:
        return cached(name)
    except FormatError:
        raise why from None
