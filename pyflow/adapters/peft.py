"""Adapters as folders of PEFT: adapter_config.json beside adapter_model.safetensors or .bin.

The scale is alpha / r, or alpha / sqrt(r) with use_rslora; patterns give modules another r or
alpha. With use_dora there are magnitudes. Embeddings have lora_embedding_A and _B, beside a copy of
their own weights; parameters that hold experts have the names of their module, one of two with
`base_layer` after it. What would change the product otherwise is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from pyflow import formats
from pyflow.adapters.choice import MOST
from pyflow.adapters.files import AdapterFile, Kind, LowRank, Scaling, pair
from pyflow.errors import FormatError, ShapeError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import read_json

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MAX_CONFIG = 1 << 20
_PREFIX = "base_model.model."
_NAME = re.compile(
    r"(?P<module>.+)\.lora_((?P<part>[AB])(\.[^.]+)?\.weight"
    r"|(?P<more>embedding_[AB]|magnitude_vector)(\.[^.]+)?)"
)
_COPY = ".base_layer.weight"
# Keys that change what is computed; each with what leaves it as it is.
_REFUSED: dict[str, tuple[object, ...]] = {
    "bias": ("none",),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "monteclora_config": (None,),
    "kasa_config": (None,),
    "lora_ga_config": (None,),
    # Others change the model's own weights when PEFT loads it.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
# Keys of PEFT 0.21 that only tell how an adapter was trained, or where it came from.
_PASSED_OVER = {
    *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying"),
    *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_dropout", "megatron_config", "megatron_core"),
    *("peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules"),
    *("target_parameters", "task_type", "velora_config"),
}


class _Config(msgspec.Struct):
    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool = False
    use_dora: bool = False
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
    for key, value in every.items():
        is_known = key in _PASSED_OVER or key in _REFUSED or key in _Config.__struct_fields__
        if value not in (None, False, "", [], {}) and not is_known:
            raise UnsupportedError(
                f"{path}: expected settings of PEFT's LoRA, found {key!r:.80}; update pyflow, or "
                "take the key out if it tells of training alone"
            )
    alphas = (config.lora_alpha, *config.alpha_pattern.values())
    if config.r < 1 or not all(abs(alpha) <= MOST for alpha in alphas):
        raise FormatError(
            f"{path}: expected r of 1 or more and lora_alpha up to {MOST:g}, found {config.r} and "
            f"{', '.join(f'{alpha:g}' for alpha in alphas[:8])}"
        )
    weights = next((folder / name for name in _WEIGHTS if (folder / name).exists()), None)
    if weights is None:
        raise FormatError(f"{folder}: expected {' or '.join(_WEIGHTS)}, found neither")
    checkpoint = formats.open(weights)
    scaling = Scaling(
        path,
        config.r,
        config.lora_alpha,
        config.use_rslora,
        config.rank_pattern,
        config.alpha_pattern,
    )
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    modules, copies = _modules(checkpoint, shapes)
    matrices = {
        module: _low_rank(checkpoint, module, parts, shapes, config.use_dora, scaling)
        for module, parts in modules.items()
    }
    if not matrices:
        raise FormatError(f"{weights}: expected tensors of an adapter, found none")
    return AdapterFile(folder, checkpoint, matrices, scaling, copies)


def _modules(
    checkpoint: Checkpoint, shapes: Mapping[str, object]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """By module: its tensors by their parts; and copies of the module's own weights."""
    modules: dict[str, dict[str, str]] = {}
    copies = {}
    for name in shapes:
        plain = name.removeprefix(_PREFIX)
        found = _NAME.fullmatch(plain)
        if found is not None:
            part = found["part"] or found["more"].removesuffix("_vector")
            parts = modules.setdefault(found["module"], {})
            if part in parts:
                raise FormatError(
                    f"{checkpoint.path}: {found['module']}: expected one adapter, found tensors "
                    f"{parts[part]} and {name}"
                )
            parts[part] = name
        elif plain.endswith(_COPY):
            copies[plain.removesuffix(_COPY)] = name
        else:
            raise UnsupportedError(
                f"{checkpoint.path}: tensor {name}: expected {_PREFIX}MODULE.lora_A.weight or "
                "lora_B; a whole tensor is not applied, so merge the adapter into its model with "
                "PEFT"
            )
    for module, name in copies.items():
        parts = modules.get(module, {})
        if "embedding_A" not in parts and not (module.endswith("lm_head") and "A" in parts):
            raise UnsupportedError(
                f"{checkpoint.path}: tensor {name}: expected no weights of the model but those of "
                "an embedding or a head beside its adapter; merge the adapter into its model with "
                "PEFT"
            )
    return modules, copies


def _low_rank(
    checkpoint: Checkpoint,
    module: str,
    parts: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
    use_dora: bool,
    scaling: Scaling,
) -> LowRank:
    is_lookup = "embedding_A" in parts
    a, b = ("embedding_A", "embedding_B") if is_lookup else ("A", "B")
    expected = {a, b, *(["magnitude"] if use_dora else [])}
    if parts.keys() != expected:
        raise FormatError(
            f"{checkpoint.path}: {module}: expected "
            f"{', '.join(f'lora_{_part(part)}' for part in sorted(expected))}, found "
            f"{', '.join(f'lora_{_part(part)}' for part in sorted(parts))}"
        )
    rank = pair(checkpoint, module, parts[a], parts[b], shapes)
    if use_dora:
        found, n = shapes[parts["magnitude"]], shapes[parts[b]][0]
        if math.prod(found) != n:
            raise ShapeError(
                f"{checkpoint.path}: {module}: expected a magnitude for each of {n} rows of B, "
                f"found {tuple(found)}"
            )
    if module.endswith((".experts", ".base_layer")):
        if use_dora:
            raise UnsupportedError(
                f"{checkpoint.path}: {module}: expected no magnitudes beside parameters, found some"
            )
        return LowRank(parts[a], parts[b], rank, 0.0, "experts")
    scale, kind = scaling.scale(module, rank), "lookup" if is_lookup else "matrix"
    return LowRank(parts[a], parts[b], rank, scale, cast("Kind", kind), parts.get("magnitude", ""))


def _part(part: str) -> str:
    return "magnitude_vector" if part == "magnitude" else part
