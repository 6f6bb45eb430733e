"""AWQ: weights as AutoAWQ packs them for its kernels gemm and gemv.

    gemm: NAME.qweight  I32 (k, n / 8)        codes of four bits along n
          NAME.qzeros   I32 (groups, n / 8)   zeros likewise
          NAME.scales   (groups, n)
    gemv: NAME.qweight  I32 (n, k / 8)        codes along k
          NAME.qzeros   I32 (n, width)        zeros along groups, of which there may be fewer
          NAME.scales   (n, 8 * width)

The nibbles of a word, from its low end, are columns 0, 2, 4, 6, 1, 3, 5 and 7 of eight for gemm,
and 0 to 7 for gemv. A weight is scale * (code - zero). The packings of gemv_fast and llm-awq are
others, and refused.
"""

from __future__ import annotations

from pyflow.formats.quantized.fields import Fields, check_ignored
from pyflow.formats.quantized.parts import SCALES, Made, Parts

from pyflow import _core

_BITS = 4
_PASSED_OVER = (
    *("quant_method", "method", "zero_point", "sym", "do_fuse", "modules_to_fuse", "meta"),
    *("fuse_max_seq_len", "exllama_config", "desc_act", "lm_head", "tokenizer", "dataset"),
)


def made(fields: Fields, parts: Parts) -> Made:
    """What makes up each quantized matrix."""
    fields.choice("bits", (_BITS,))
    group_size = fields.choice("group_size", (-1, 16, 32, 64, 128, 256, 512, 1024), 128)
    version = fields.choice("version", ("gemm", "GEMM", "gemv", "GEMV"), "gemm").lower()
    for name in ("format", "checkpoint_format"):
        fields.choice(name, (version, version.upper()), version)
    if version == "gemv" and group_size == 16:
        raise fields.fault("group_size", "32 or more for gemv")
    plan = _plan_of_gemv if version == "gemv" else _plan
    fields.choice("backend", ("autoawq", "auto", "gptqmodel"), "auto")
    fields.choice("pack_dtype", ("int32",), "int32")
    ignored = fields.names("modules_to_not_convert")
    fields.absent("dynamic", "adapter", "rotation")
    fields.passed_over(*_PASSED_OVER)
    fields.close()
    stems = list(parts.stems(".qweight"))
    check_ignored(fields.where, stems, ignored)
    return Made([plan(parts, stem, group_size) for stem in stems])


def _plan(parts: Parts, stem: str, group_size: int) -> _core.Integers:
    k, words = parts.tensor(f"{stem}.qweight", ("I32",)).shape
    n = words * 32 // _BITS
    size = k if group_size == -1 else group_size
    n_groups = -(-k // size)
    scales = parts.tensor(f"{stem}.scales", SCALES, (n_groups, n))
    parts.tensor(f"{stem}.qzeros", ("I32",), (n_groups, words))
    low, high = parts.fields_range(f"{stem}.qzeros", _BITS)
    order = _core.PackOrder.AWQ
    zeros = _core.Packed(f"{stem}.qzeros", _BITS, order, per_line=words, per_word=1)
    return _core.Integers(
        f"{stem}.weight",
        parts.dtype((-high, 15 - low), scales, size, k),
        (n, k),
        codes=_core.Packed(f"{stem}.qweight", _BITS, order, words, 1, by_column=True),
        zeros=_core.Zeros(0, zeros),
        scales=_core.ScalesAt(f"{stem}.scales", per_row=1, per_group=n),
        groups=_core.Groups(size, n_groups),
    )


def _plan_of_gemv(parts: Parts, stem: str, group_size: int) -> _core.Integers:
    n, words = parts.tensor(f"{stem}.qweight", ("I32",)).shape
    k = words * 32 // _BITS
    size = k if group_size == -1 else group_size
    n_groups = -(-k // size)
    width = _zeros_width(n_groups, size)
    scales = parts.tensor(f"{stem}.scales", SCALES, (n, 8 * width))
    parts.tensor(f"{stem}.qzeros", ("I32",), (n, width))
    low, high = parts.fields_range(f"{stem}.qzeros", _BITS)
    order = _core.PackOrder.WORDS
    zeros = _core.Packed(f"{stem}.qzeros", _BITS, order, per_line=width, per_word=1)
    return _core.Integers(
        f"{stem}.weight",
        parts.dtype((-high, 15 - low), scales, size, k),
        (n, k),
        codes=_core.Packed(f"{stem}.qweight", _BITS, order, words, 1),
        zeros=_core.Zeros(0, zeros, by_row=True),
        scales=_core.ScalesAt(f"{stem}.scales", per_row=8 * width, per_group=1),
        groups=_core.Groups(size, n_groups),
    )


def _zeros_width(n_groups: int, size: int) -> int:
    """Words of a row of zeros: eight groups in each, and more where the kernel reads several."""
    at_once = max(1, 128 // size)
    return (n_groups + 8 * at_once - 1) // (8 * at_once) * at_once
