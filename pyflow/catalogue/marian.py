"""Students of Marian (Firefox Translations, Bergamot) as folders that pyflow reads.

A model.bin: u64 version 1, u64 count; four u64 for each tensor: bytes of its name, type,
rank, bytes of its data; then names, shapes (i32), u64 bytes of padding and the padding, then data.
Type 0x404 is F32; 0x4101 is int8 codes and one F32 multiplier behind them, a weight being code /
multiplier. Matrices that are called (in, out) lie as rows of outputs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats.safetensors_writer import (
    METHOD,
    VERSION,
    NewTensor,
    SafetensorsWriter,
    alignment,
)

_F32, _INT8 = 0x404, 0x4101
_MAX_TENSORS, _MAX_NAME, _MAX_RANK = 4096, 256, 4
_BLOCK = 32
Array = NDArray[np.float32] | tuple[NDArray[np.int8], float]
"""Values, or int8 codes and their multiplier."""

_TEXT, _END = (
    {"Sequence": {"id": "A", "type_id": 0}},
    {"SpecialToken": {"id": "</s>", "type_id": 0}},
)
_ENDS_TEXTS = {
    "type": "TemplateProcessing",
    "single": [_TEXT, _END],
    "pair": [_TEXT, {"Sequence": {"id": "B", "type_id": 0}}, _END],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}},
}
_NORM = {"_scale": ".weight", "_bias": ".bias"}
_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


def read(data: bytes, where: Path) -> tuple[dict[str, Array], str]:
    """The tensors of a file by their names there, and its configuration (YAML). FormatError, naming
    `where`: it is not such a file, or is broken."""

    def fault(what: str) -> FormatError:
        return FormatError(f"{where}: expected a model of Marian, {what}; fetch it again")

    def take(at: int, n: int, what: str) -> bytes:
        if n < 0 or at + n > len(data):
            raise fault(f"{what} runs past the end of the file ({len(data):,} bytes)")
        return data[at : at + n]

    version, count = struct.unpack("<QQ", take(0, 16, "its header"))
    if version != 1 or not 1 <= count <= _MAX_TENSORS:
        raise fault(f"found version {version} and {count} tensors")
    heads = list(struct.iter_unpack("<QQQQ", take(16, 32 * count, "its table")))
    at, names, shapes = 16 + 32 * count, [], []
    for length, _, _, _ in heads:
        if length > _MAX_NAME:
            raise fault(f"found a name of {length} bytes")
        names.append(take(at, length, "a name").rstrip(b"\0").decode("utf-8", "replace"))
        at += length
    for _, _, rank, _ in heads:
        if rank > _MAX_RANK:
            raise fault(f"found a tensor of rank {rank}")
        shapes.append(struct.unpack(f"<{rank}i", take(at, 4 * rank, "a shape")))
        at += 4 * rank
    at += 8 + struct.unpack("<Q", take(at, 8, "the padding"))[0]
    found: dict[str, Array] = {}
    config = ""
    for name, shape, (_, kind, _, nbytes) in zip(names, shapes, heads, strict=True):
        raw, n = take(at, nbytes, f"tensor {name}"), int(np.prod(shape, dtype=np.int64))
        at += nbytes
        if name == "special:model.yml":
            config = raw.rstrip(b"\0").decode("utf-8", "replace")
        elif name.endswith("_QuantMultA"):
            continue  # scales of activations, which pyflow finds itself
        elif kind == _F32 and 0 <= 4 * n <= nbytes:
            found[name] = np.frombuffer(raw, np.float32, n).reshape(shape)
        elif kind == _INT8 and 0 <= n + 4 <= nbytes and len(shape) == 2:
            rows = shape if name == "Wemb" else shape[::-1]
            multiplier = float(np.frombuffer(raw, np.float32, 1, n)[0])
            if not (np.isfinite(multiplier) and multiplier > 0):
                raise fault(f"tensor {name} has the multiplier {multiplier}")
            found[name] = np.frombuffer(raw, np.int8, n).reshape(rows), multiplier
        else:
            raise fault(f"tensor {name} has type {kind:#x}, shape {shape} and {nbytes} bytes")
    return found, config


def convert(model: bytes, tokenizer: bytes, target: Path, *, where: Path) -> None:
    """Writes a folder of a student: config.json, tokenizer.json and model.safetensors, whose int8
    codes are those of the file. FormatError, naming `where`: the file is broken; UnsupportedError:
    it is another kind of model."""
    tensors, config = read(model, where)
    said = dict(line.split(": ", 1) for line in config.split("\n") if ": " in line)
    for key, value in (("dec-cell", "ssru"), ("tied-embeddings-all", "true")):
        if said.get(key) != value:
            raise UnsupportedError(
                f"{where}: {key}: expected {value}, a student, found {said.get(key)!r:.40}"
            )
    try:
        made = {_renamed(name): array for name, array in tensors.items()}
        _add_start(made)
        facts = _facts(made, said)
        vocabulary = json.loads(tokenizer) | {"post_processor": _ENDS_TEXTS}
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise FormatError(
            f"{where}: expected a student of Marian, found other tensors or keys ({error})"
        ) from None
    target.mkdir()
    for name, content in (
        ("config.json", facts),
        ("tokenizer_config.json", {"eos_token": "</s>"}),
        ("tokenizer.json", vocabulary),
    ):
        (target / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", "utf-8")
    _write(target / "model.safetensors", made)


def _facts(tensors: Mapping[str, Array], said: Mapping[str, str]) -> dict[str, Any]:
    """What config.json says."""
    n_vocab, n_embd = _shape(tensors["shared.weight"])
    facts: dict[str, Any] = {
        "model_type": "marian-student",
        "vocab_size": n_vocab,
        "d_model": n_embd,
        "activation_function": said["transformer-ffn-activation"],
        "scale_embedding": True,
        "decoder_start_token_id": n_vocab - 1,
        "eos_token_id": 0,
        "quantization_config": {"quant_method": METHOD, "version": VERSION, "type": "q8_0"},
    }
    for stack in ("encoder", "decoder"):
        facts[f"{stack}_layers"] = sum(
            name.startswith(f"{stack}.") and name.endswith("fc1.weight") for name in tensors
        )
        facts[f"{stack}_attention_heads"] = int(said["transformer-heads"])
        facts[f"{stack}_ffn_dim"] = int(said["transformer-dim-ffn"])
    return facts


def _renamed(name: str) -> str:
    """The name of the same tensor in Marian models of Hugging Face; units have names of ours."""
    if name in ("Wemb", "decoder_ff_logit_out_b"):
        return {"Wemb": "shared.weight"}.get(name, "final_logits_bias")
    stack, layer, part, rest = name.split("_", 3)
    at = f"{stack}.layers.{int(layer[1:]) - 1}"
    for end, to in _NORM.items():
        if f"_ln{end}" in f"_{rest}":
            norm = {"self": "self_attn", "rnn": "self_attn", "context": "encoder_attn"}.get(part)
            return f"{at}.{norm}_layer_norm{to}" if norm else f"{at}.final_layer_norm{to}"
    if part == "ffn":
        return f"{at}.fc{rest[1]}.{'weight' if rest[0] == 'W' else 'bias'}"
    kind = "weight" if rest[0] == "W" else "bias"
    if part == "rnn":
        return f"{at}.rnn.{'gate' if rest.endswith('f') else 'value'}.{kind}"
    where = "self_attn" if part == "self" else "encoder_attn"
    return f"{at}.{where}.{_ATTENTION[rest[1]]}.{kind}"


def _add_start(tensors: dict[str, Array]) -> None:
    """Adds the token that texts begin with: its embedding is zero, and it is never drawn."""
    table = tensors["shared.weight"]
    if not isinstance(table, tuple):
        raise ValueError("embeddings are no codes")
    codes, multiplier = table
    zero = np.zeros((1, codes.shape[1]), np.int8)
    tensors["shared.weight"] = np.concatenate([codes, zero]), multiplier
    bias = np.asarray(tensors["final_logits_bias"], np.float32).reshape(-1)
    tensors["final_logits_bias"] = np.append(bias, np.float32(-1e9))


def _shape(array: Array) -> tuple[int, ...]:
    return (array[0] if isinstance(array, tuple) else array).shape


def _write(path: Path, tensors: Mapping[str, Array]) -> None:
    blocks: dict[str, tuple[NewTensor, NDArray[Any]]] = {}
    for name, array in tensors.items():
        if isinstance(array, tuple):
            codes = _blocks(*array)
            blocks[name] = NewTensor(name, array[0].shape, "Q8_0", codes.nbytes), codes
        else:
            values = array.reshape(-1) if array.shape[0] == 1 else array
            blocks[name] = NewTensor(name, values.shape, "F32", values.nbytes), values
    ordered = sorted(blocks.values(), key=lambda one: -alignment(one[0].dtype))
    with path.open("xb") as file:
        writer = SafetensorsWriter(file, [tensor for tensor, _ in ordered], {"format": "pt"})
        for _, data in ordered:
            writer.write(np.ascontiguousarray(data).view(np.uint8).reshape(-1))
            writer.end_tensor()
        writer.close()


def _blocks(codes: NDArray[np.int8], multiplier: float) -> NDArray[np.uint8]:
    """Q8_0: a scale in F16 and 32 codes. The scale is one for all, within 2^-11."""
    rows = codes.reshape(-1, _BLOCK)
    scale = np.full((len(rows), 1), 1 / multiplier, np.float16)
    return np.concatenate([scale.view(np.uint8), rows.view(np.uint8)], axis=1).reshape(-1)
