"""Makes bitsandbytes.json: small matrices as bitsandbytes quantizes them, and the values that it
makes of them again, in float32 on the CPU.

    python tests/golden/quantized/make_bitsandbytes.py

The environment holds bitsandbytes 0.50 and torch. Tensors are (type, shape, bytes as hex).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"uint8": "U8", "int8": "I8", "float32": "F32"}


def kept(tensor: Any) -> list[Any]:
    array = tensor.detach().numpy()
    return [_TYPES[array.dtype.name], list(array.shape), array.tobytes().hex()]


def main() -> None:
    import torch
    from bitsandbytes import functional

    draw = np.random.default_rng(0)
    cases = {}
    for kind, nested, shape in (
        ("nf4", False, (3, 128)),
        ("nf4", True, (6, 64)),
        ("fp4", True, (2, 64)),
    ):
        weights = torch.from_numpy((draw.standard_normal(shape) * 0.05).astype(np.float32))
        codes, state = functional.quantize_4bit(
            weights, blocksize=64, quant_type=kind, compress_statistics=nested
        )
        tensors = {f"weight.{name}": one for name, one in state.as_dict(packed=True).items()}
        values = functional.dequantize_4bit(codes, state)
        cases[f"{kind}{'_nested' * nested}"] = {"weight": codes, **tensors, "values": values}
    weights = torch.from_numpy(draw.standard_normal((3, 32)).astype(np.float16))
    codes, largest, _ = functional.int8_vectorwise_quant(weights)
    values = functional.int8_vectorwise_dequant(codes, largest)
    order = torch.tensor(0, dtype=torch.uint8)
    cases["int8"] = {"weight": codes, "SCB": largest, "weight_format": order, "values": values}
    found = {case: {k: kept(t) for k, t in tensors.items()} for case, tensors in cases.items()}
    lines = [f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items()]
    target = Path(__file__).with_name("bitsandbytes.json")
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
