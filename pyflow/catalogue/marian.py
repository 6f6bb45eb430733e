"""Students of Marian (Firefox Translations, Bergamot) as folders of Hugging Face.

formats.open reads their model.bin as it is, too. A folder has what a file has not: the start of
texts as a token that is never drawn, and a tokenizer.json that ends texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow import formats
from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats.safetensors_writer import (
    METHOD,
    VERSION,
    NewTensor,
    SafetensorsWriter,
    alignment,
)
from pyflow.specs.bind.marian import facts

_STUDENT = "transformer-ssru"
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


def convert(model: Path, tokenizer: bytes, target: Path) -> None:
    """Writes a folder of a student: config.json, tokenizer.json and model.safetensors, whose int8
    codes are those of the file. FormatError: the file is broken; UnsupportedError: it is another
    kind of model."""
    checkpoint = formats.open(model)
    if checkpoint.format != "Marian":
        raise FormatError(f"{model}: expected a file of Marian, found {checkpoint.format}")
    family, said = facts(checkpoint)
    if family != _STUDENT:
        raise UnsupportedError(f"{model}: expected a student, with units (ssru), found {family}")
    try:
        made = {_renamed(name): array for name, array in _arrays(checkpoint)}
        _add_start(made)
        vocabulary = json.loads(tokenizer) | {"post_processor": _ENDS_TEXTS}
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise FormatError(
            f"{model}: expected a student of Marian, found other tensors or keys ({error})"
        ) from None
    target.mkdir()
    for name, content in (
        ("config.json", _config(said)),
        ("tokenizer_config.json", {"eos_token": "</s>"}),
        ("tokenizer.json", vocabulary),
    ):
        (target / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", "utf-8")
    _write(target / "model.safetensors", made)


def _arrays(checkpoint: formats.Checkpoint) -> Iterator[tuple[str, Array]]:
    """By Marian's names, but for scales of activations, which pyflow finds itself."""
    for tensor in checkpoint.tensors:
        if tensor.name.endswith("_QuantMultA"):
            continue
        values: NDArray[Any] = checkpoint.array(tensor.name)
        divisors = checkpoint.native.divisors(tensor.name)
        yield tensor.name, (values, float(divisors[0])) if divisors.size else values


def _config(said: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says."""
    found: dict[str, Any] = {
        "model_type": "marian-student",
        "vocab_size": said["n_vocab"],
        "d_model": said["n_embd"],
        "activation_function": said["activation"],
        "scale_embedding": True,
        "decoder_start_token_id": said["start"],
        "eos_token_id": 0,
        "quantization_config": {"quant_method": METHOD, "version": VERSION, "type": "q8_0"},
    }
    for stack, n_layers in (("encoder", "n_layers"), ("decoder", "n_decoder_layers")):
        found[f"{stack}_layers"] = said[n_layers]
        found[f"{stack}_attention_heads"] = said["n_heads"]
        found[f"{stack}_ffn_dim"] = said["n_ff"]
    return found


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
