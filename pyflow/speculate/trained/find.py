"""Finds the speculator of a model that nobody has named."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".speculator"


def beside(model: Path) -> Path | None:
    """The folder speculator/ in a model's folder, or NAME.speculator/ beside a file NAME.gguf."""
    folder = model / "speculator" if model.is_dir() else model.with_suffix(SUFFIX)
    return folder if (folder / "config.json").is_file() else None
