"""A repository with two quants of nothing, and pulling it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

from pyflow import hub as client
from pyflow.downloads import Progress
from pyflow.hub.pull import Pulled

from .server import Hub, Repo

Q4 = b"GGUF" + random.Random(4).randbytes(300_000)
Q8 = b"GGUF" + random.Random(8).randbytes(400_000)
TOKEN = "hf_secret"
FREE = 1 << 40


def put(hub: Hub, **changes: object) -> Repo:
    files = {"README.md": b"---", "t-Q4_K_M.gguf": Q4, "t-Q8_0.gguf": Q8}
    large = frozenset({"t-Q4_K_M.gguf", "t-Q8_0.gguf"})
    hub.repos["org/tiny"] = dataclasses.replace(Repo(files, large), **changes)  # type: ignore[arg-type]
    return hub.repos["org/tiny"]


def pull(
    name: str = "hf:org/tiny",
    *,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Pulled:
    parsed = client.parse(name)
    assert isinstance(parsed, client.HubName)
    return client.fetch(client.plan(parsed, available=FREE), force=force, progress=progress)


def in_cache(tmp_path: Path) -> list[str]:
    """Files and links of the repository, without locks."""
    top = tmp_path / "hub" / "models--org--tiny"
    return sorted(str(p.relative_to(top)) for p in top.rglob("*") if not p.is_dir())


def bodies(hub: Hub) -> list[str | None]:
    """The ranges asked of the storage server."""
    return [one.headers.get("range") for one in hub.seen if one.server == "storage"]
