"""Adapters as folders of PEFT: adapter_config.json beside adapter_model.safetensors or .bin.

The scale is alpha / r, or alpha / sqrt(r) with use_rslora; patterns give modules another r or
alpha. What would change the product otherwise is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyflow import formats
from pyflow.adapters.choice import MOST
from pyflow.adapters.files import AdapterFile, LowRank, pair
from pyflow.errors import FormatError, ShapeError, UnsupportedError
from pyflow.formats.side_files import read_json

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MAX_CONFIG = 1 << 20
_PREFIX = "base_model.model."
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.[^.]+)?\.weight")
# Keys that change what is computed; each with what leaves it as it is.
_REFUSED: dict[str, tuple[object, ...]] = {
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "monteclora_config": (None,),
    "kasa_config": (None,),
    "lora_ga_config": (None,),
}


class _Config(msgspec.Struct):
    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] = msgspec.field(default_factory=dict)
    alpha_pattern: dict[str, float] = msgspec.field(default_factory=dict)


def read(folder: Path) -> AdapterFile:
    """Raises as `open_adapter`."""
    path = folder / CONFIG
    if not path.exists():
        raise FormatError(f"{folder}: expected an adapter, found no {CONFIG}")
    every = read_json(path, dict[str, Any], max_nbytes=_MAX_CONFIG)
    if (kind := every.get("peft_type")) != "LORA":
        raise UnsupportedError(f"{path}: peft_type: expected LORA, found {kind!r:.80}")
    config = read_json(path, _Config, max_nbytes=_MAX_CONFIG)
    for key, plain in _REFUSED.items():
        if key in every and every[key] not in plain:
            raise UnsupportedError(
                f"{path}: {key}: expected {plain[0]!r}, found {every[key]!r:.80}; merge the "
                "adapter into its model with PEFT"
            )
    if config.r < 1 or not abs(config.lora_alpha) <= MOST:
        raise FormatError(
            f"{path}: expected r of 1 or more and lora_alpha up to {MOST:g}, found {config.r} and "
            f"{config.lora_alpha}"
        )
    weights = next((folder / name for name in _WEIGHTS if (folder / name).exists()), None)
    if weights is None:
        raise FormatError(f"{folder}: expected {' or '.join(_WEIGHTS)}, found neither")
    checkpoint = formats.open(weights)
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    sides: dict[str, dict[str, str]] = {}
    for name in shapes:
        found = _NAME.fullmatch(name.removeprefix(_PREFIX))
        if found is None:
            raise UnsupportedError(
                f"{weights}: tensor {name}: expected {_PREFIX}MODULE.lora_A.weight or lora_B; a "
                "whole tensor is not applied, so merge the adapter into its model with PEFT"
            )
        sides.setdefault(found["module"], {})[found["side"]] = name
    matrices = {}
    for module, names in sides.items():
        if len(names) < 2:
            raise FormatError(f"{weights}: {module}: expected lora_A and lora_B, found one")
        rank = pair(checkpoint, module, names["A"], names["B"], shapes)
        expected = _of(config.rank_pattern, module, config.r, path)
        if rank != expected:
            raise ShapeError(
                f"{weights}: {module}: expected rank {expected} as {CONFIG} says, found {rank}"
            )
        alpha = _of(config.alpha_pattern, module, config.lora_alpha, path)
        scale = alpha / (math.sqrt(rank) if config.use_rslora else rank)
        matrices[module] = LowRank(names["A"], names["B"], rank, scale)
    if not matrices:
        raise FormatError(f"{weights}: expected tensors of an adapter, found none")
    return AdapterFile(folder, checkpoint, matrices)


def _of(patterns: Mapping[str, float], module: str, default: float, path: Path) -> float:
    """By the first pattern that is the module's name, or the end of it after a dot."""
    for pattern, value in patterns.items():
        # Files may hold any expression; names and plain alternatives are all that PEFT writes.
        if not re.fullmatch(r"[\w.|()^$\\-]*", pattern) or len(pattern) > 1000:
            raise UnsupportedError(
                f"{path}: pattern: expected names, dots and |, found {pattern!r:.80}"
            )
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        except re.error as error:
            raise FormatError(f"{path}: pattern {pattern!r:.80}: {error}") from None
    return default
