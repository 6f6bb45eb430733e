"""Floats of four bits whose scales of 16 are FP8 and share one scale: NVFP4 of folders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import arrays
from pyflow.formats.quantized import fp8
from pyflow.formats.quantized.parts import Parts, Plan

from pyflow import _core

_GROUP = 16
_NAN = 0x7F
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def fp4_codes(parts: Parts, stem: str, codes: str, whole: str, *, divides: bool) -> Plan:
    """What makes up the matrix stem.weight: nibbles, low ones first, in stem.codes U8 (n, k / 2),
    scales in stem.weight_scale F8_E4M3 (n, k / 16), and one F32, stem.whole, for all scales."""
    n, width = parts.tensor(f"{stem}.{codes}", ("U8",)).shape
    k = 2 * width
    groups = -(-k // _GROUP)
    scale = f"{stem}.weight_scale"
    parts.tensor(scale, (fp8.TYPE,), (n, groups))
    is_scalar = f"{stem}.{whole}" in parts.table and not parts.table[f"{stem}.{whole}"].shape
    parts.tensor(f"{stem}.{whole}", ("F32",), () if is_scalar else (1,))
    factor = parts.floats(f"{stem}.{whole}").reshape(-1)[0]
    with np.errstate(all="ignore"):
        is_number = 0 < abs(1 / factor if divides else factor) < np.inf
    codes_of_scales: NDArray[np.uint8] = parts.native.data(scale)
    is_compact = k % 64 == 0 and is_number and codes_of_scales.max() < _NAN
    values = [*_POSITIVE, *(-x for x in _POSITIVE)] * 16
    return _core.Codes(
        f"{stem}.weight",
        "F32",
        (n, k),
        codes=_core.CodesAt(f"{stem}.{codes}", _core.CodeForm.LOW_FIRST, values),
        scales=_core.ScalesAt(
            scale,
            groups,
            1,
            table=[float(x) for x in arrays.f8_values(fp8.TYPE)],
            factor=float(factor),
            divides=divides,
        ),
        block=(1, _GROUP),
        compact="NVFP4" if is_compact else "",
    )
