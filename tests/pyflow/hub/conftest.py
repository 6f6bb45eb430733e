"""A hub of our own, an empty cache, and no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import server


@pytest.fixture(scope="session")
def servers() -> Iterator[server.Hub]:
    with server.running() as hub:
        yield hub


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a pull would have waited."""
    seen: list[float] = []
    for module in ("session", "transfer"):
        monkeypatch.setattr(f"pyflow.hub.{module}.pause", seen.append)
    return seen


@pytest.fixture
def hub(
    servers: server.Hub,
    pauses: list[float],  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> server.Hub:
    """The hub, holding nothing yet; no token is set."""
    from huggingface_hub import constants

    url, storage = servers.url, servers.storage
    servers.__init__()  # type: ignore[misc]
    servers.url, servers.storage = url, storage
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("PYFLOW_CACHE", str(tmp_path / "pyflow"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return servers


@pytest.fixture
def new_client() -> Iterator[None]:
    """The library's client is made anew, by the environment of this test."""
    from huggingface_hub.utils import close_session

    close_session()
    yield
    close_session()
