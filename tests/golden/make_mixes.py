"""Makes mixes.json: which format llama.cpp gives to each tensor, by file type.

    python tests/golden/make_mixes.py

The models of mix_models.py go through llama_model_quantize. Written down is the format of each role
in each layer, runs of the same one as "NAME x count". Needs llama-cpp-python and gguf.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import tempfile
from pathlib import Path

import gguf
import llama_cpp
from mix_models import MODELS, write_model

# LLAMA_FTYPE_MOSTLY_<type>
FILE_TYPES = {
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
}


def formats_by_role(path: Path) -> dict[str, str]:
    found: dict[str, list[tuple[int, str]]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        layer = re.match(r"blk\.(\d+)\.", tensor.name)
        role = tensor.name.removeprefix(layer[0] if layer else "").removesuffix(".weight")
        place = int(layer[1]) if layer else 0
        found.setdefault(role, []).append((place, tensor.tensor_type.name))
    return {
        role: ", ".join(
            f"{name} x {len([*run])}"
            for name, run in itertools.groupby(name for _, name in sorted(places))
        )
        for role, places in sorted(found.items())
    }


def main() -> None:
    cases: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.gguf"), Path(folder, "target.gguf")
        for kind, model in MODELS.items():
            write_model(source, model)
            for name, file_type in FILE_TYPES.items():
                parameters = llama_cpp.llama_model_quantize_default_params()
                parameters.ftype, parameters.nthread = file_type, 1
                done = llama_cpp.llama_model_quantize(
                    str(source).encode(), str(target).encode(), ctypes.byref(parameters)
                )
                if done != 0:
                    raise SystemExit(f"llama_model_quantize of {kind} to {name}: {done}")
                cases.setdefault(kind, {})[name] = formats_by_role(target)
    golden = {
        "command": "python tests/golden/make_mixes.py",
        "peer": f"llama-cpp-python {llama_cpp.__version__}, llama_model_quantize",
        "cases": cases,
    }
    Path(__file__).with_name("mixes.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
