"""What the hub says of a repository: its files, their sizes and hashes, its commit and licence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from pyflow.errors import FormatError, PyflowError
from pyflow.hub.names import PREFIX, HubName, is_safe
from pyflow.hub.session import RefusedError, Session, origin
from pyflow.text import printable

COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Large(Struct):
    sha256: str = ""
    size: int | None = None


class _Sibling(Struct):
    rfilename: str
    size: int | None = None
    lfs: _Large | None = None


class _Listing(Struct):
    """The answer to /api/models/REPO/revision/REVISION."""

    sha: str
    siblings: list[_Sibling]
    card: Any = field(default=None, name="cardData")
    tags: list[str] | None = None
    gated: bool | str | None = None


class _Id(Struct):
    id: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. Also one of a snapshot on this machine, where hashes are unknown."""

    name: str
    """Its path in the repository, which is_safe."""
    nbytes: int | None = None
    sha256: str | None = None
    """Of large files; the others have the hash of a git blob."""


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository at one commit."""

    name: HubName
    commit: str
    files: tuple[RemoteFile, ...]
    licence: str
    gated: bool


def describe(session: Session, name: HubName) -> Repo:
    """The repository that a name means. PyflowError: there is none, or it is closed to us."""
    revision = f"/revision/{quote(name.revision, safe='')}" if name.revision else ""
    url = f"{session.endpoint}/api/models/{name.repo}{revision}?blobs=true"
    try:
        found = session.json(url, _Listing)
    except RefusedError as error:
        raise explained(error, session, name) from None
    if COMMIT.fullmatch(found.sha) is None:
        raise FormatError(f"{url}: expected a commit, found {printable(found.sha)[:80]!r}")
    return Repo(
        name=name,
        commit=found.sha,
        files=tuple(_file(one, name) for one in found.siblings),
        licence=_licence(found),
        gated=bool(found.gated),
    )


def explained(error: RefusedError, session: Session, name: HubName) -> PyflowError:
    """What a refusal means for a repository, and what to do."""
    if origin(error.url) != origin(session.endpoint):
        return error  # of a storage server, which knows no repositories
    repo, page = name.repo, f"{session.endpoint}/{name.repo}"
    token = "set HF_TOKEN or run 'hf auth login'"
    if error.code == "GatedRepo" or "gated" in error.message.lower():
        if session.token is None:
            return PyflowError(
                f"{repo}: is gated: accept its terms at {page}, then {token}, and pull again"
            )
        return PyflowError(
            f"{repo}: is gated, and the account of your token has no access yet: ask at {page}"
        )
    if error.code == "RevisionNotFound":
        return PyflowError(
            f"{repo}: has no revision {name.revision or 'main'!r}; expected a branch, a tag or a"
            f" commit of {page}"
        )
    if error.code == "EntryNotFound":
        return PyflowError(f"{error.url}: no such file; pull again, for {repo} has changed")
    if "disabled" in error.message.lower():
        return PyflowError(f"{repo}: the hub has disabled it; choose another repository")
    is_token = "invalid" in error.message.lower() and error.code != "RepoNotFound"
    if error.status == 401 and is_token and session.token is not None:
        return PyflowError(
            "the hub refuses the token in HF_TOKEN or the token file; renew it by 'hf auth login'"
        )
    if error.status in (401, 404):
        private = "" if session.token else f"; if it is private, {token}"
        near = _nearest_there(session, name)
        hint = f"did you mean {near}?" if near else "check the name"
        return PyflowError(f"{repo}: no such repository at {session.host}; {hint}{private}")
    if error.status == 403:
        return PyflowError(
            f"{repo}: the hub refuses access (403); give the token the right to read it at"
            f" {session.endpoint}/settings/tokens"
        )
    return error


def _nearest_there(session: Session, name: HubName) -> str | None:
    """The repository of the same organization with the nearest name."""
    organization, slash, _ = name.repo.partition("/")
    if not slash:
        return None
    try:
        url = f"{session.endpoint}/api/models?author={organization}&limit=1000"
        ids = [one.id for one in session.json(url, list[_Id])]
    except PyflowError:
        return None
    return nearest(name, ids)


def nearest(name: HubName, repos: Iterable[str]) -> str | None:
    """The name of the repository that could have been meant."""
    known = {repo.lower(): repo for repo in repos if repo.isprintable() and repo != name.repo}
    near = difflib.get_close_matches(name.repo.lower(), known, n=1)
    return f"{PREFIX}{known[near[0]]}" if near else None


def _file(one: _Sibling, name: HubName) -> RemoteFile:
    large = one.lfs or _Large()
    nbytes = one.size if large.size is None else large.size
    if not is_safe(one.rfilename) or (nbytes or 0) < 0:
        raise FormatError(
            f"{name.repo}: expected files inside the repository, found"
            f" {printable(one.rfilename)[:80]!r} of {nbytes} bytes"
        )
    is_hash = _SHA256.fullmatch(large.sha256) is not None
    return RemoteFile(one.rfilename, nbytes, large.sha256 if is_hash else None)


def _licence(found: _Listing) -> str:
    """The licence that the model's card names, with its link, or "unknown"."""
    card = found.card if isinstance(found.card, dict) else {}
    named = (t.removeprefix("license:") for t in found.tags or () if t.startswith("license:"))
    parts = [
        card.get("license") or next(named, None),
        *(card.get("license_name"), card.get("license_link")),
    ]
    texts = [", ".join(map(str, p)) if isinstance(p, list) else p for p in parts]
    told = [printable(t)[:200] for t in texts if isinstance(t, str) and t and t != "other"]
    return ", ".join(dict.fromkeys(told)) or "unknown"
