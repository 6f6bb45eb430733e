"""Quantization: weights to blocks, the error of that, and perplexity.

import pyflow.quant

blocks = pyflow.quant.quantize(weights, "q4_k")
pyflow.quant.distortion(weights, "q4_k").snr_db
"""

from pyflow.quant.blocks import (
    FORMATS,
    TARGETS,
    Distortion,
    Format,
    dequantize,
    difference,
    distortion,
    format_of,
    quantize,
    read_as,
    target_of,
)

__all__ = [
    "FORMATS",
    "TARGETS",
    "Distortion",
    "Format",
    "dequantize",
    "difference",
    "distortion",
    "format_of",
    "quantize",
    "read_as",
    "target_of",
]
