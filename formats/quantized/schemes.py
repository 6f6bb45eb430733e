"""The config_groups of compressed-tensors: how weights of some modules are quantized."""

from __future__ import annotations

from dataclasses import dataclass

from pyflow.formats.quantized import fp8
from pyflow.formats.quantized.fields import Fields

PACKED, BYTES, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
FP4, MX4, MX8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"
_FORMATS = (PACKED, BYTES, FLOATS, "naive-quantized", FP4, MX4, MX8)
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_PASSED_OVER = ("dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights are quantized. group_size: columns, 0 for whole rows. block: rows and columns."""

    bits: int
    strategy: str
    group_size: int
    block: tuple[int, int] | None
    is_ordered: bool
    """Columns have groups in the order of activations."""


def schemes(fields: Fields) -> list[Scheme]:
    """One for each group. UnsupportedError: a format, or a field, that is not known."""
    fields.choice("format", (*_FORMATS, "mixed-precision"))
    found = []
    for name, given in fields.table("config_groups").items():
        group = Fields(f"{fields.where}.config_groups.{name!r:.60}", {})
        if not isinstance(given, dict):
            raise fields.fault("config_groups", "objects")
        group = Fields(group.where, given)
        group.names("targets")
        group.choice("format", _FORMATS, None)
        group.passed_over("input_activations", "output_activations")
        weights = group.table("weights")
        group.close()
        if weights:
            found.append(_scheme(Fields(f"{group.where}.weights", weights)))
    if not found:
        raise fields.fault("config_groups", "a group with weights")
    return found


def _scheme(fields: Fields) -> Scheme:
    bits = fields.choice("num_bits", (2, 3, 4, 5, 6, 7, 8), 8)
    fields.choice("type", ("int", "float"), "int")
    fields.flag("symmetric", True)
    size = fields.given.get("group_size")
    group_size = 0 if size == -1 else fields.size("group_size", 0)
    fields.known.add("group_size")
    otherwise = "group" if group_size else "channel" if size == -1 else "tensor"
    strategy = fields.choice("strategy", _STRATEGIES, otherwise)
    if strategy in ("group", "tensor_group") and not group_size:
        raise fields.fault("group_size", "a whole number of 1 or more")
    block = fp8.block_of(fields, "block_structure")
    order = fields.choice("actorder", ("group", "dynamic", "weight", "static", True, False), None)
    fields.passed_over(*_PASSED_OVER)
    fields.close()
    is_ordered = order in ("group", "dynamic", True)
    return Scheme(bits, strategy, group_size, block, is_ordered)
