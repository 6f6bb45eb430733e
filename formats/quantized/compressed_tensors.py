"""compressed-tensors, what llm-compressor writes.

    pack-quantized        NAME.weight_packed  I32 (n, words)   code + 2^(bits - 1) along k
                          NAME.weight_scale   (n, groups), (n, 1) for rows, or one
                          NAME.weight_shape   n, k
                          NAME.weight_zero_point  I32 (words, groups), along n, if asymmetric
                          NAME.weight_g_idx   I32 (k), in the order of activations
    int-quantized         NAME.weight I8 (n, k), weight_scale, weight_zero_point I8
    float-quantized       as fp8
    nvfp4-pack-quantized  NAME.weight_packed U8 (n, k / 2), low nibbles first; weight_scale F8_E4M3
                          (n, k / 16), divided by NAME.weight_global_scale, one F32
    mxfp4-pack-quantized  the same nibbles; weight_scale U8 (n, k / 32), powers of two
    mxfp8-quantized       NAME.weight F8_E4M3, the same scales

Codes of three bits are a stream of bits now, and were ten to a word: their number tells. What a
module has says its form; config_groups say which sizes there may be. Modules that are ignored have
plain weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyflow.formats.quantized import fp8
from pyflow.formats.quantized.fields import Fields
from pyflow.formats.quantized.fp4 import fp4_codes
from pyflow.formats.quantized.parts import SCALES, Made, Parts, Plan
from pyflow.formats.quantized.schemes import Scheme, schemes

from pyflow import _core
from pyflow.errors import FormatError
from pyflow.text import printable

_PASSED_OVER = ("quant_method", "quantization_status", "global_compression_ratio", "version")
_ACTIVATIONS = (
    *("input_scale", "input_zero_point", "input_global_scale", "input_g_idx"),
    *("output_scale", "output_zero_point", "k_scale", "v_scale", "q_scale"),
)
_HIDDEN = ("weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale")


def made(fields: Fields, parts: Parts) -> Made:
    """What makes up each quantized matrix."""
    groups = schemes(fields)
    ignored = set(fields.names("ignore"))
    if (sparse := fields.table("sparsity_config")) and sparse.get("format", "dense") != "dense":
        raise fields.fault("sparsity_config", "none, or format 'dense'")
    fields.absent("transform_config", "moe_sparsity_config")
    fields.passed_over(*_PASSED_OVER, "kv_cache_scheme", "run_compressed", "dequantize")
    fields.close()
    packed = list(parts.stems(".weight_packed"))
    plain = [
        stem
        for stem in parts.stems(".weight")
        if parts.table[f"{stem}.weight"].dtype in ("I8", fp8.TYPE)
    ]
    for stem in (*packed, *plain):
        if stem in ignored:
            raise FormatError(
                f"{fields.where}.ignore: {printable(stem):.200}: expected plain weights, found "
                "quantized ones; convert it again"
            )
    plans = [_packed(parts, stem, groups) for stem in packed]
    plans += [_plain(parts, stem, groups) for stem in plain]
    ends = tuple(f".{name}" for name in _ACTIVATIONS)
    hidden = [name for name in parts.table if name.endswith(ends)]
    return Made(
        plans, hidden + [f"{stem}.{name}" for stem in (*packed, *plain) for name in _HIDDEN]
    )


def _packed(parts: Parts, stem: str, groups: Sequence[Scheme]) -> Plan:
    """Of weight_packed: integers in words, or floats of four bits in bytes."""
    name, scale = f"{stem}.weight_packed", f"{stem}.weight_scale"
    n, width = parts.tensor(name, ("I32", "U8")).shape
    if parts.table[name].dtype == "I32":
        return _words(parts, stem, groups)
    k = width * 2
    if f"{stem}.weight_global_scale" not in parts.table and k % 32 == 0:
        parts.tensor(scale, ("U8", "F8_E8M0"), (n, k // 32))
        return _core.MxBlocks(f"{stem}.weight", (n, k), blocks=name, scales=scale)
    return fp4_codes(parts, stem, "weight_packed", "weight_global_scale", divides=True)


def _plain(parts: Parts, stem: str, groups: Sequence[Scheme]) -> Plan:
    """Of weight: bytes of integers or floats."""
    name, scale = f"{stem}.weight", f"{stem}.weight_scale"
    n, k = parts.tensor(name, ("I8", fp8.TYPE)).shape
    if parts.table[name].dtype == fp8.TYPE:
        shape = parts.table[scale].shape if scale in parts.table else None
        blocks = [g.block or (1, g.group_size or k) for g in groups]
        fits = [b for b in blocks if shape == (-(-n // b[0]), -(-k // b[1]))]
        return fp8.plan(parts, stem, fits[0] if fits else None)
    sizes = {g.group_size or k for g in groups}
    size, per_row, per_group = _scales(parts, scale, n, k, sizes)
    n_groups = -(-k // size)
    zeros, integers = _core.Zeros(128), (-128, 127)
    if (zero := f"{stem}.weight_zero_point") in parts.table:
        parts.tensor(zero, ("I8",), (n, n_groups))
        packed = _core.Packed(zero, 8, _core.PackOrder.BYTES, per_line=1, per_word=n_groups)
        values = parts.values(zero)
        zeros, integers = (
            _core.Zeros(0, packed),
            (-128 - int(values.max()), 127 - int(values.min())),
        )
    dtype = parts.dtype(integers, parts.table[scale], size, k)
    return _core.Integers(
        name,
        dtype,
        (n, k),
        codes=_core.Packed(name, 8, _core.PackOrder.BYTES, per_line=k, per_word=1),
        zeros=zeros,
        scales=_core.ScalesAt(scale, per_row, per_group),
        groups=_core.Groups(size, n_groups),
        compact=parts.compact(dtype, integers, parts.table[scale], size, k),
    )


def _words(parts: Parts, stem: str, groups: Sequence[Scheme]) -> Plan:
    name, scale = f"{stem}.weight_packed", f"{stem}.weight_scale"
    n, width = parts.table[name].shape
    k = _shape(parts, stem, n)
    fits = [g for g in groups if width in _widths(k, g.bits).values()]
    if not fits:
        wanted = " or ".join(str(w) for g in groups for w in _widths(k, g.bits).values())
        raise parts.fault(name, f"rows of {wanted} words for {k} columns", width)
    bits = fits[0].bits
    order = next(order for order, words in _widths(k, bits).items() if words == width)
    size, per_row, per_group = _scales(parts, scale, n, k, {g.group_size or k for g in fits})
    n_groups = -(-k // size)
    group_of = parts.group_of(f"{stem}.weight_g_idx", k, size, n_groups)
    if not group_of and f"{stem}.weight_g_idx" not in parts.table and fits[0].is_ordered:
        raise parts.fault(name, "a weight_g_idx beside it, as of actorder 'group'", "none")
    middle = 1 << bits - 1
    zeros, integers = _core.Zeros(middle), (-middle, middle - 1)
    if (zero := f"{stem}.weight_zero_point") in parts.table:
        parts.tensor(zero, ("I32",), (_widths(n, bits)[order], n_groups))
        packed = _core.Packed(zero, bits, order, per_line=1, per_word=n_groups)
        low, high = (0, 2 * middle - 1) if 32 % bits else parts.fields_range(zero, bits)
        zeros, integers = _core.Zeros(0, packed), (-high, 2 * middle - 1 - low)
    dtype = parts.dtype(integers, parts.table[scale], 0 if group_of else size, k)
    return _core.Integers(
        f"{stem}.weight",
        dtype,
        (n, k),
        codes=_core.Packed(name, bits, order, per_line=width, per_word=1),
        zeros=zeros,
        scales=_core.ScalesAt(scale, per_row, per_group),
        groups=_core.Groups(size, n_groups, group_of),
        compact=parts.compact(dtype, integers, parts.table[scale], group_of or size, k),
    )


def _shape(parts: Parts, stem: str, n: int) -> int:
    """The columns of a matrix of n rows in words."""
    name = f"{stem}.weight_shape"
    parts.tensor(name, ("I64", "I32"), (2,))
    rows, cols = (int(x) for x in parts.values(name))
    if rows != n or not 0 < cols < 1 << 31:
        raise parts.fault(name, f"{n} rows and some columns", (rows, cols))
    return cols


def _widths(n: int, bits: int) -> dict[_core.PackOrder, int]:
    """Words of a line of n integers, by their order."""
    each = 32 // bits
    return {_core.PackOrder.STREAM: -(-n * bits // 32), _core.PackOrder.WORDS: -(-n // each)}


def _scales(parts: Parts, name: str, n: int, k: int, sizes: set[int]) -> tuple[int, int, int]:
    """Columns of a group, and numbers from one row and group to the next."""
    kinds: dict[tuple[int, ...], tuple[int, int, int]] = {
        (n, -(-k // s)): (s, -(-k // s), 1) for s in sizes
    }
    if k in sizes:
        kinds |= {(n,): (k, 1, 0)} | {shape: (k, 0, 0) for shape in ((), (1,), (1, 1))}
        kinds[n, 1] = (k, 1, 0)
    found = parts.table.get(name)
    if found is None or found.shape not in kinds:
        shapes = " or ".join(map(str, kinds))
        raise parts.fault(name, f"scales of {shapes}", None if found is None else found.shape)
    parts.tensor(name, SCALES, found.shape)
    return kinds[found.shape]
