"""The cache that programs of the hub share.

    $HF_HUB_CACHE/models--ORG--REPO/
        blobs/ETAG                  the bytes of a file, under its hash
        blobs/ETAG.incomplete       those that have come so far
        snapshots/COMMIT/FILE       a link to the bytes
        refs/REVISION               the commit that a branch or tag was at

Files that are there are used as they are. A reference is written last: what it leads to is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyflow.hub.listing import COMMIT, RemoteFile
from pyflow.hub.names import HubName, is_safe

_MOST_FILES = 100_000
VARIABLE = "HF_HUB_CACHE"


def cache_dir() -> Path:
    """$HF_HUB_CACHE, or `hub` in $HF_HOME, or what the library has else."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


@dataclass(frozen=True, slots=True)
class RepoCache:
    """The folder of a repository."""

    folder: Path

    @classmethod
    def of(cls, repo: str) -> RepoCache:
        return cls(cache_dir() / f"models--{repo.replace('/', '--')}")

    def lock_path(self, etag: str) -> Path:
        """The lock that the library takes too."""
        return self.folder.parent / ".locks" / self.folder.name / f"{etag}.lock"

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def growing(self, etag: str) -> Path:
        return self.folder / "blobs" / f"{etag}.incomplete"

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def commit(self, revision: str | None) -> str | None:
        """The commit of a revision, by its reference or as the start of a commit itself."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found = (self.folder / "refs" / (revision or "main")).read_text().strip()
            if COMMIT.fullmatch(found):
                return found
        if revision is None or re.fullmatch(r"[0-9a-f]{7,40}", revision) is None:
            return None
        with contextlib.suppress(OSError):
            names = [path.name for path in (self.folder / "snapshots").iterdir()]
            fits = [name for name in names if name.startswith(revision)]
            return fits[0] if len(fits) == 1 else None
        return None

    def link(self, commit: str, name: str, etag: str) -> Path:
        """Makes the file `name` of a snapshot lead to its bytes; where links are impossible, moves
        the bytes there."""
        from huggingface_hub import constants

        path, blob = self.snapshot(commit) / name, self.blob(etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{uuid.uuid4().hex[:8]}.tmp")
        try:
            if getattr(constants, "HF_HUB_DISABLE_SYMLINKS", False):  # not in version 1.0
                raise OSError
            beside.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:
            blob.replace(path)
        else:
            beside.replace(path)
        return path

    def refer(self, revision: str, commit: str) -> None:
        """Writes down the commit of a branch or tag."""
        if revision == commit or self.commit(revision) == commit:
            return
        path = self.folder / "refs" / revision
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        beside.write_text(commit)
        beside.replace(path)

    def files(self, commit: str) -> tuple[list[RemoteFile], list[Path]]:
        """The files of a snapshot, and links whose bytes are gone."""
        top = self.snapshot(commit)
        files: list[RemoteFile] = []
        broken: list[Path] = []
        for folder, _, names in os.walk(top):
            for name in names:
                path = Path(folder, name)
                relative = path.relative_to(top).as_posix()
                if not is_safe(relative) or len(files) == _MOST_FILES:
                    continue
                if path.is_file():
                    files.append(RemoteFile(relative, path.stat().st_size))
                else:
                    broken.append(path)
        files.sort(key=lambda file: file.name)
        return files, broken


def repos() -> Iterator[tuple[HubName, RepoCache]]:
    """The repositories of models in the cache, without their revisions."""
    with contextlib.suppress(OSError):
        for folder in sorted(cache_dir().iterdir()):
            kind, _, rest = folder.name.partition("--")
            if kind == "models" and rest and folder.is_dir():
                yield HubName(rest.replace("--", "/", 1)), RepoCache(folder)
