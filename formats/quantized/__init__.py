"""Folders whose weights other programs have quantized: what their config.json says, and which
tensors make up a matrix. A method is one file with `made`, and a line of METHODS."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyflow.formats.quantized import awq, bitsandbytes, compressed_tensors, fp8, gptq, modelopt
from pyflow.formats.quantized.fields import Fields
from pyflow.formats.quantized.parts import Made, Parts
from pyflow.formats.side_files import read_bytes

from pyflow import _core
from pyflow.errors import FormatError

METHODS: dict[str, Callable[[Fields, Parts], Made]] = {
    "awq": awq.made,
    "bitsandbytes": bitsandbytes.made,
    "compressed-tensors": compressed_tensors.made,
    "fbgemm_fp8": fp8.made_of_rows,
    "fp8": fp8.made,
    "gptq": gptq.made,
    "modelopt": modelopt.made,
}
"""By the quant_method of a quantization_config."""
KEY = "quantization_config"
FORMAT = "safetensors"
"""The only format of files that is read so."""
_MAX_CONFIG = 64 << 20  # bytes


def method_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The place of a quantization_config of one of the methods in a config.json, and the object."""
    for root, one in (("", config), ("text_config.", config.get("text_config"))):
        found = one.get(KEY) if isinstance(one, dict) else None
        name = found.get("quant_method") if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(name, str) and name in METHODS:
            return f"{root}{KEY}", found
    return None


def join(native: _core.Checkpoint, path: Path) -> _core.Checkpoint:
    """The checkpoint with its quantized matrices as tensors of our formats, as the config.json at
    path says, if there is one that says so.

    UnsupportedError: a variant that this build does not read. FormatError: parts are missing or of
    other shapes.
    """
    if native.format != FORMAT or (found := method_of(_config(path))) is None:
        return native
    where, given = found
    fields = Fields(f"{path}: {where}", given)
    made = METHODS[given["quant_method"]](fields, Parts.of(native, native.files[0]))
    if not made.plans:
        raise FormatError(
            f"{fields.where}: expected quantized tensors, found none in {native.files[0]}; if its "
            f"weights are plain, delete {KEY}"
        )
    return _core.join_tensors(native, made.plans, made.hidden)


def _config(path: Path) -> dict[str, Any]:
    """A config.json; {} if there is none that can be read, as whoever needs it will say."""
    with suppress(FormatError, ValueError, RecursionError):
        if path.is_file():
            config = json.loads(read_bytes(path, max_nbytes=_MAX_CONFIG))
            return config if isinstance(config, dict) else {}
    return {}
