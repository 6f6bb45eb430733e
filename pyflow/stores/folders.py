"""Stores that are folders of GGUF files: LM Studio's, and llama.cpp's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from pyflow.hub.listing import RemoteFile
from pyflow.hub.quants import is_aside, is_gguf, quants
from pyflow.stores.stored import Aside, Stored

LM_STUDIO, LLAMA_CPP = "lmstudio:", "llama.cpp:"
# Where programs write what is not complete yet.
_HALF = (
    ".part",
    ".partial",
    ".tmp",
    ".incomplete",
    ".downloadinprogress",
    ".download",
    ".crdownload",
)
_MOST_FILES = 100_000


def lm_studio() -> list[Path]:
    return [Path.home() / ".lmstudio/models", Path.home() / ".cache/lm-studio/models"]


def llama_cpp() -> list[Path]:
    """$LLAMA_CACHE, or llama.cpp in the user's cache folder."""
    named = os.environ.get("LLAMA_CACHE")
    return [Path(named) if named else Path(platformdirs.user_cache_dir("llama.cpp", False))]


def models(folder: Path, prefix: str) -> Iterator[Stored | Aside]:
    """The models of GGUF files below a folder, named by their paths in it."""
    files: list[RemoteFile] = []
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if name.lower().endswith(_HALF):
            yield Aside(path, "a download that is not complete")
        elif is_gguf(name) and not is_aside(name):
            try:
                if not path.is_file():  # opening a pipe would wait
                    raise OSError(0, "is no file, or a link to none")
                with path.open("rb") as opened:
                    is_model = opened.read(4) == b"GGUF"
                nbytes = path.stat().st_size
            except OSError as error:
                yield Aside(path, error.strerror or "cannot be read")
                continue
            if is_model:
                files.append(RemoteFile(name, nbytes))
            else:
                yield Aside(path, "is no GGUF file, or not complete")
    whole = quants(files)
    for quant in whole:
        main = quant.files[0].name
        yield Stored(f"{prefix}{main}", folder / main, quant.nbytes or 0)
    used = {file.name for quant in whole for file in quant.files}
    for file in files:
        if file.name not in used:
            yield Aside(folder / file.name, "other parts of the model are not there")


def _walk(folder: Path) -> Iterator[Path]:
    left = _MOST_FILES
    for top, below, names in os.walk(folder, followlinks=False):
        below.sort()
        for name in sorted(names):
            if (left := left - 1) < 0:
                return
            yield Path(top, name)
