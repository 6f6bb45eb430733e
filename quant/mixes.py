"""Which format each tensor of a model gets: one for all, or a mix by the tensor's role.

All mixes but Q3H_M, and the numbers in general.file_type, are llama.cpp's, without its exceptions
for Falcon and 70B models. attn_v and ffn_down suffer most from coarse weights, most of all in the
first and last layers; the output matrix affects every token. A role is a tensor's name without
layer and ".weight".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyflow.quant.blocks import FORMATS, TARGETS

# Arguments: layer i of the n layers with the role, and query heads per key head.
_When = Callable[[int, int, int], bool]


def _always(i: int, n: int, gqa: int) -> bool:  # noqa: ARG001
    return True


def _outer(i: int, n: int, gqa: int) -> bool:  # noqa: ARG001
    """The first and the last eighth, and every third layer between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _first_part(part: int) -> _When:
    return lambda i, n, gqa: i < n // part  # noqa: ARG005


def _first(count: int) -> _When:
    return lambda i, n, gqa: i < count  # noqa: ARG005


def _shared(i: int, n: int, gqa: int) -> bool:  # noqa: ARG001
    """Four or more query heads share a key head: keys and values are few and matter more."""
    return gqa >= 4


@dataclass(frozen=True, slots=True)
class Mix:
    """A format for most matrices, and rules for some roles: the first rule that holds wins."""

    base: str
    file_type: int
    """The value of general.file_type."""
    rules: Mapping[str, tuple[tuple[_When, str], ...]] = field(default_factory=dict)
    within: str | None = None
    """Instead of rules: spend as many bytes as this mix takes, see budget.py."""


_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
}
_IQ4 = {
    "attn_v": ((_shared, "Q5_K"),),
    "ffn_down": ((_first_part(8), "Q5_K"),),
}

TYPES: dict[str, Mix] = {
    # Formats without a GGUF file type use their own type number.
    **{name: Mix(name, _FILE_TYPES.get(name, f.gguf_id)) for name, f in TARGETS.items()},
    "Q2_K": Mix(
        "Q2_K",
        10,
        {
            "attn_v": ((_shared, "Q4_K"), (_always, "Q3_K")),
            "ffn_down": ((_always, "Q3_K"),),
            "attn_output": ((_always, "Q3_K"),),
        },
    ),
    "Q3_K_S": Mix("Q3_K", 11),
    "Q3_K_M": Mix(
        "Q3_K",
        12,
        {
            "attn_v": ((_first(2), "Q5_K"), (_always, "Q4_K")),
            "ffn_down": ((_first_part(16), "Q5_K"), (_always, "Q4_K")),
            "attn_output": ((_always, "Q4_K"),),
        },
    ),
    "Q3_K_L": Mix(
        "Q3_K",
        13,
        {
            "attn_v": ((_always, "Q5_K"),),
            "ffn_down": ((_always, "Q5_K"),),
            "attn_output": ((_always, "Q5_K"),),
        },
    ),
    "Q4_K_S": Mix(
        "Q4_K",
        14,
        {"attn_v": ((_first(4), "Q5_K"),), "ffn_down": ((_first_part(8), "Q5_K"),)},
    ),
    "Q4_K_M": Mix(
        "Q4_K",
        15,
        {
            "attn_v": ((_outer, "Q6_K"),),
            "ffn_down": ((_outer, "Q6_K"),),
        },
    ),
    "Q5_K_S": Mix("Q5_K", 16),
    "Q5_K_M": Mix(
        "Q5_K",
        17,
        {
            "attn_v": ((_outer, "Q6_K"),),
            "ffn_down": ((_outer, "Q6_K"),),
        },
    ),
    "IQ4_NL": Mix("IQ4_NL", 25, _IQ4),
    "IQ4_XS": Mix("IQ4_XS", 30, _IQ4),
    # Ours: stores pairs of weights in 7 bits where the budget allows no more.
    "Q3H_M": Mix("Q3H_K", 0x50460100, within="Q3_K_M"),
}
"""The types of `pyflow quantize --type`, in upper case."""

# Replacements for rows that blocks of 256 or 64 do not divide: slightly larger, no less accurate.
_SMALLER = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "Q3H_K": "Q3H_NL",
    "Q3H_B64": "Q4_B32",
    "Q4_B64": "Q4_B32",
    "Q5_B64": "Q5_1",
    "Q6_B64": "Q8_B32",
    "Q8_B64": "Q8_B32",
}

# File types that use Q5_K for attn_output of models with eight experts.
_FINER_FOR_EXPERTS = {10, 11, 12, 14, 15, 25, 30}

# Matrices that are small and sensitive, or looked up by position.
_NEVER = re.compile(
    r"_norm\.weight$|ffn_gate_inp|position_embd|token_types|ssm_conv1d|shortconv\.conv|altup|"
    r"laurel|per_layer_model_proj|attn_rel_b|time_mix_"
)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of GGUF's name and shape is quantized at all."""
    rows = [n for n in shape[:-1] if n != 1]
    return name.endswith("weight") and bool(rows) and not _NEVER.search(name)


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to, if any."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def role_of(name: str) -> str:
    """A tensor's name without layer and ".weight"."""
    return re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight")


def choose(mix: Mix, role: str, place: tuple[int, int], *, gqa: int, n_experts: int) -> str:
    """The format that a mix gives to layer place[0] of place[1] layers with the role.

    gqa: query heads per key head. With eight experts attention is a small part of the model, so
    that more bits for it cost little.
    """
    if role == "attn_qkv":
        role = "attn_v"
    if n_experts == 8:
        if role in {"attn_v", "attn_k"}:
            return "Q8_0"
        if role == "attn_output":
            return "Q5_K" if mix.file_type in _FINER_FOR_EXPERTS else mix.base
    for kind, rules in mix.rules.items():
        if role == kind or role in {f"{kind}_exps", f"{kind}_shexp"}:
            for holds, name in rules:
                if holds(*place, gqa):
                    return name
    return mix.base


def of_output(base: str) -> str:
    """The format of the output matrix (the token embedding, if tied): Q6_K or better."""
    return "Q6_K" if FORMATS[base].bits_per_weight < FORMATS["Q6_K"].bits_per_weight else base


def fitting(name: str, n_cols: int) -> str:
    """The format, or its replacement if its blocks do not divide rows of n_cols."""
    while n_cols % FORMATS[name].block:
        name = _SMALLER.get(name, "F16")
    return name
