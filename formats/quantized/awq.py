"""AWQ: weights as AutoAWQ packs them for its kernel gemm.

    NAME.qweight  I32 (k, n / 8)        codes of four bits along n
    NAME.qzeros   I32 (groups, n / 8)   zeros likewise
    NAME.scales   (groups, n)

The nibbles of a word, from its low end, are columns 0, 2, 4, 6, 1, 3, 5 and 7 of eight. A weight is
scale * (code - zero). The packings of gemv, gemv_fast and llm-awq are others, and refused.
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
    for name in ("version", "format", "checkpoint_format"):
        fields.choice(name, ("gemm", "GEMM"), "gemm")
    fields.choice("backend", ("autoawq", "auto", "gptqmodel"), "auto")
    fields.choice("pack_dtype", ("int32",), "int32")
    ignored = fields.names("modules_to_not_convert")
    fields.absent("dynamic", "adapter", "rotation")
    fields.passed_over(*_PASSED_OVER)
    fields.close()
    stems = list(parts.stems(".qweight"))
    check_ignored(fields.where, stems, ignored)
    return Made([_plan(parts, stem, group_size) for stem in stems])


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
