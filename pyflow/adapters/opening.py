"""Opens files of adapters, of either kind."""

from __future__ import annotations

from pathlib import Path

from pyflow import formats
from pyflow.adapters import gguf, peft
from pyflow.adapters.files import AdapterFile
from pyflow.errors import FormatError


def open_adapter(path: str | Path) -> AdapterFile:
    """The adapter in a folder of PEFT, or in a GGUF file.

    FormatError, ShapeError, UnsupportedError: it is none, a broken one, or of a kind that this
    build does not apply.
    """
    if not str(path):  # which would be the folder at hand
        raise FormatError("'': expected an adapter, found nothing there")
    path = Path(path)
    if not path.exists():
        raise FormatError(f"{path}: expected an adapter, found nothing there")
    if path.is_dir():
        return peft.read(path)
    checkpoint = formats.open(path)
    if checkpoint.format != "GGUF":
        raise FormatError(
            f"{path}: expected a GGUF file, or a folder with adapter_config.json, found "
            f"{checkpoint.format}; give its folder"
        )
    return gguf.read(path, checkpoint)
