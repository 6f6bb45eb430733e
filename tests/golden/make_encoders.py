"""Makes encoders.json: what llama.cpp's own quantization of some tensors leaves of them.

    python tests/golden/make_encoders.py

A file that holds the tensors of encoder_tensors.py as F16 goes through llama_model_quantize once
for each type, plain and with the importance; the result is read by the gguf package. Written down
is the sum of importance * difference^2 over the sum of importance * weight^2.
Needs llama-cpp-python and gguf.
"""

from __future__ import annotations

import ctypes
import json
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from encoder_tensors import COLS, ROWS, importance, tensors

# LLAMA_FTYPE_MOSTLY_<type>; with `pure` every matrix gets this type.
FILE_TYPES = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q8_0": 7,
    "Q2_K": 10,
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
}
# Names of matrices that a llama model has, one for each kind of tensor.
NAMES = dict(zip(tensors(), ("ffn_up", "ffn_gate", "attn_q", "attn_output"), strict=True))


def write_source(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(COLS)
    writer.add_feed_forward_length(ROWS)
    writer.add_head_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for kind, weights in tensors().items():
        writer.add_tensor(f"blk.0.{NAMES[kind]}.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, target: Path, file_type: int, weighed: bool) -> None:
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread, parameters.pure = file_type, 1, True
    data = importance()
    entries = (llama_cpp.llama_model_imatrix_data * (len(NAMES) + 1))()
    for entry, name in zip(entries, NAMES.values(), strict=False):
        entry.name = f"blk.0.{name}.weight".encode()
        entry.data = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = len(data)
    if weighed:
        parameters.imatrix = entries
    done = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(parameters)
    )
    if done != 0:
        raise SystemExit(f"llama_model_quantize to file type {file_type}: {done}")


def losses(path: Path, name: str, weighed: bool) -> dict[str, float]:
    by = importance().astype(np.float64) if weighed else np.ones(COLS)
    made = {t.name: t for t in gguf.GGUFReader(path).tensors}
    found = {}
    for kind, weights in tensors().items():
        tensor = made[f"blk.0.{NAMES[kind]}.weight"]
        if tensor.tensor_type.name != name:
            raise SystemExit(f"{kind}: expected {name}, found {tensor.tensor_type.name}")
        x = weights.astype(np.float64)
        d = gguf.quants.dequantize(tensor.data, tensor.tensor_type) - x
        found[kind] = float(f"{(by * d * d).sum() / (by * x * x).sum():.6g}")
    return found


def main() -> None:
    plain, by_importance = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.gguf"), Path(folder, "target.gguf")
        write_source(source)
        for name, file_type in FILE_TYPES.items():
            for weighed, results in ((False, plain), (True, by_importance)):
                quantize(source, target, file_type, weighed)
                results[name] = losses(target, name, weighed)
    golden = {
        "command": "python tests/golden/make_encoders.py",
        "peer": f"llama-cpp-python {llama_cpp.__version__}, llama_model_quantize",
        "plain": plain,
        "by_importance": by_importance,
    }
    target = Path(__file__).with_name("encoders.json")
    target.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
