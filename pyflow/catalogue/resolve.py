"""From the name of a model to what is to be opened. Nothing is fetched here."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from pyflow import hub, stores
from pyflow.catalogue.entries import models
from pyflow.errors import FormatError

_NEARBY = 8  # GGUF files named in an error
_DESCRIPTIONS = ("config.json", "pyflow.toml")  # of the model in a folder
_MARIAN = ("*.npz", "*.bin")  # models that describe themselves


def resolve(name_or_path: str | Path) -> Path:
    """The file, or the folder, of a model on this machine.

    A path that is there wins: a file, or a folder with config.json or pyflow.toml, or of Marian.
    Otherwise a name: of a pulled model, hf:ORG/REPO or a URL that was pulled, or a model in the
    store of another program, as in ollama:llama3.2:1b. FormatError if nothing is found; it names
    the command that pulls the model.
    """
    path, name = Path(name_or_path), str(name_or_path)
    if not name:
        raise FormatError(f"the name of the model is empty{_suggestions(path)}")
    try:
        # A pipe, a device and a broken link too: opening it says what it is.
        is_there = path.exists()
        if is_there and (not path.is_dir() or _describes_model(path)):
            return path
        if path.is_symlink() and not is_there:
            return path
    except OSError:  # a name too long, a folder closed to us: opening it says which
        return path
    if (there := _named(name)) is not None:
        return there
    if path.is_dir():
        raise FormatError(
            f"{name}: is a folder, expected a model file, or {' or '.join(_DESCRIPTIONS)} in it"
            f"{_suggestions(path)}"
        )
    raise FormatError(
        f"{name}: no such file or pulled model{_near(name)}{_suggestions(path.parent)}"
    )


def _describes_model(folder: Path) -> bool:
    # Something else than a file, or an adapter in place of the model: opening it says so.
    if (folder / "adapter_config.json").is_file():
        return True
    if any(os.path.lexists(folder / name) for name in _DESCRIPTIONS):
        return True
    return any(path.is_file() for pattern in _MARIAN for path in folder.glob(pattern))


def _named(name: str) -> Path | None:
    """What a name means; None: it has not the form of one."""
    if name.lower().startswith(stores.PREFIXES):
        return stores.resolve(name)
    remote = hub.parse(name)
    if isinstance(remote, hub.HubName):
        return hub.cached(remote).path
    if remote is not None:
        return hub.cached_url(remote).path
    known = next((entry for entry in models() if entry.name == name), None)
    if known is None:
        return None
    if known.pulled:
        return known.path
    raise FormatError(
        f"{name} is not pulled yet; run 'pyflow pull {name}' ({known.nbytes / 1e6:.0f} MB)"
    )


def _near(name: str) -> str:
    """The name that could have been meant."""
    known = [entry.name for entry in models()]
    if near := difflib.get_close_matches(name.lower(), known, n=1):
        return f" (did you mean {near[0]}?)"
    if hub.is_repo(name) and not Path(name).suffix:
        return f" (did you mean {hub.PREFIX}{name}?)"
    return ""


def _suggestions(folder: Path) -> str:
    pulled = [e.name for e in models() if e.pulled]
    nearby = sorted(str(path) for path in folder.glob("*.gguf") if path.is_file())
    hints = []
    if pulled:
        hints.append(f"pulled: {', '.join(pulled)}")
    if nearby:
        more = f" and {len(nearby) - _NEARBY} more" if len(nearby) > _NEARBY else ""
        hints.append(f"GGUF files nearby: {', '.join(nearby[:_NEARBY])}{more}")
    if missing := [e.name for e in models() if not e.pulled]:
        hints.append(f"'pyflow pull NAME' fetches {', '.join(missing)}")
    return "; " + "; ".join(hints)
