"""ModelOpt, what NVIDIA's Model Optimizer exports.

    FP8    NAME.weight          F8_E4M3 (n, k)
           NAME.weight_scale    one F32, which multiplies
    NVFP4  NAME.weight          U8 (n, k / 2)         floats of four bits, low nibbles first
           NAME.weight_scale    F8_E4M3 (n, k / 16)
           NAME.weight_scale_2  one F32, which multiplies weight_scale

Both may have NAME.input_scale, of activations, which is passed over.
"""

from __future__ import annotations

from pyflow.formats.quantized import fp8
from pyflow.formats.quantized.fields import Fields
from pyflow.formats.quantized.fp4 import fp4_codes
from pyflow.formats.quantized.parts import Made, Parts

_PASSED_OVER = ("quant_method", "config_groups", "kv_cache_scheme", "kv_cache_quant_algo")
_MORE = ("producer", "group_size", "exclude_modules", "ignore", "version", "quantized_layers")


def made(fields: Fields, parts: Parts) -> Made:
    """What makes up each quantized matrix: what each has says how."""
    fields.choice("quant_algo", ("FP8", "NVFP4", "MIXED_PRECISION"))
    fields.passed_over(*_PASSED_OVER, *_MORE)
    fields.close()
    plans = []
    for stem in parts.stems(".weight"):
        dtype = parts.table[f"{stem}.weight"].dtype
        if dtype == "U8":
            plans.append(fp4_codes(parts, stem, "weight", "weight_scale_2", divides=False))
        elif dtype == fp8.TYPE:
            plans.append(fp8.plan(parts, stem, None))
    hidden = [name for name in parts.table if name.endswith(".weight_scale_2")]
    return Made(plans, hidden + fp8.other_scales(parts))
