"""Tiny translators as folders of Hugging Face, and the same weights in files of CTranslate2 and
Marian, written without these programs.

The converters of CTranslate2 4.8 write the same variables (specs/transformer_spec.py); Marian has
the names that students.py has too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats.safetensors_writer import NewTensor, SafetensorsWriter, alignment

from ..specs import tiny

sys.path.append(str(Path(__file__).parents[2] / "hostile"))
import ctranslate2_cases as ct2
import marian_cases

Array = NDArray[Any]
Tensors = dict[str, Array]
GOLDEN = Path(__file__).parents[2] / "golden/encoder_decoders"
# Rows of whole blocks, where the fixtures have others.
_SIZES = {48: 64, 72: 96, 80: 128, 60: 96}
_ACTIVATIONS = {"relu": 0, "gelu_new": 1, "swish": 2, "gelu": 3}
MARIAN_SPEC = """spec = 1
name = "twin"
extends = "marian"
[blocks.norm]
eps = 1e-9
[encoder.embed.positions]
exponent = "half_less_one"
[decoder.embed.positions]
exponent = "half_less_one"
"""


def model(name: str) -> tuple[dict[str, Any], Tensors]:
    """Configuration and weights of a fixture, with as many heads in both stacks."""
    fixture = json.loads((GOLDEN / f"{name}.json").read_text())
    config = fixture["config"]
    for key in ("d_model", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"):
        if key in config:
            config[key] = _SIZES[config[key]]
    if "d_kv" in config:
        config["d_kv"] = 32
    else:
        config["decoder_attention_heads"] = config["encoder_attention_heads"]
    fixture["tensors"] = {
        key: [_SIZES.get(dim, dim) for dim in shape] for key, shape in fixture["tensors"].items()
    }
    tensors: Tensors = dict(tiny.weights(fixture))
    if name == "m2m_100":
        config |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    if name == "marian":
        config["pad_token_id"] = config["decoder_start_token_id"] = 89
        tensors["model.shared.weight"][89] = 0
        tensors["final_logits_bias"][0, 89] = 0
    return config, tensors


class Codes:
    """int8 codes and what divides them, for each row or for all."""

    def __init__(self, values: Array, *, per_row: bool) -> None:
        most = np.abs(values).max(axis=1 if per_row else None)
        self.divisors = np.atleast_1d((127 / most).astype(np.float32))
        self.codes = np.rint(values * self.divisors[:, None]).astype(np.int8)

    def blocks(self) -> Array:
        """Q8_0."""
        n = self.codes.shape[1] // 32
        scales = np.broadcast_to((1 / self.divisors).astype(np.float16), len(self.codes))
        parts = self.codes.reshape(-1, 32).view(np.uint8)
        return np.hstack([np.repeat(scales, n)[:, None].view(np.uint8), parts]).reshape(-1)


def folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Array | Codes]) -> Path:
    """As Hugging Face has it, but for codes, which are blocks as pyflow writes them."""
    path.mkdir()
    has_codes = any(isinstance(one, Codes) for one in tensors.values())
    own = {"quant_method": "pyflow", "version": 1, "type": "q8_0"} if has_codes else None
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": own}))
    written: list[tuple[NewTensor, Array]] = []
    for name, one in tensors.items():
        if isinstance(one, Codes):
            data = one.blocks()
            written.append((NewTensor(name, one.codes.shape, "Q8_0", data.nbytes), data))
        else:
            kind = {"float32": "F32", "float16": "F16"}[one.dtype.name]
            written.append((NewTensor(name, one.shape, kind, one.nbytes), one))
    written.sort(key=lambda pair: -alignment(pair[0].dtype))
    with (path / "model.safetensors").open("xb") as file:
        writer = SafetensorsWriter(file, [one for one, _ in written], {"format": "pt"})
        for _, values in written:
            writer.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
            writer.end_tensor()
        writer.close()
    return path


def is_matrix(name: str) -> bool:
    """Whether converters quantize a tensor of Hugging Face."""
    return name.endswith("weight") and not any(
        part in name for part in ("norm", "positions", "relative")
    )


def _waves(config: Mapping[str, Any]) -> Array:
    """A table of sines and cosines, as the classes of Marian and M2M100 have it."""
    half, is_marian = config["d_model"] // 2, config["model_type"] == "marian"
    rates = 10000.0 ** (-np.arange(half) / (half if is_marian else half - 1))
    first = 0 if is_marian else config["pad_token_id"] + 1
    angles = (np.arange(config["max_position_embeddings"]) + first)[:, None] * rates
    return np.hstack([np.sin(angles), np.cos(angles)]).astype(np.float32)


def _of_bart(config: Mapping[str, Any], t: Tensors) -> Tensors:
    family, found = config["model_type"], Tensors()
    n_rows = config["vocab_size"] - (family == "marian")

    def put(to: str, *names: str) -> None:
        found[f"{to}/weight"] = np.concatenate([t[f"{name}.weight"] for name in names])
        found[f"{to}/bias"] = np.concatenate([t[f"{name}.bias"] for name in names])

    def put_norm(to: str, name: str) -> None:
        if f"{name}.weight" in t:
            found[f"{to}/gamma"], found[f"{to}/beta"] = t[f"{name}.weight"], t[f"{name}.bias"]

    for stack in ("encoder", "decoder"):
        at, table = f"model.{stack}", "embeddings" + "_0" * (stack == "encoder")
        found[f"{stack}/num_heads"] = np.int16(config[f"{stack}_attention_heads"])
        found[f"{stack}/pre_norm"] = np.int8(family in ("m2m_100", "mbart"))
        found[f"{stack}/activation"] = np.int8(
            _ACTIVATIONS[config.get("activation_function", "gelu")]
        )
        scaled = config.get("scale_embedding", False)
        found[f"{stack}/scale_embeddings"] = np.float32(config["d_model"] ** 0.5 if scaled else 1)
        found[f"{stack}/{table}/weight"] = t["model.shared.weight"][:n_rows]
        learned = t.get(f"{at}.embed_positions.weight")
        found[f"{stack}/position_encodings/encodings"] = (
            _waves(config) if learned is None else learned[2:]
        )
        put_norm(f"{stack}/layer_norm", f"{at}.layer_norm")
        put_norm(f"{stack}/layernorm_embedding", f"{at}.layernorm_embedding")
        for i in range(config[f"{stack}_layers"]):
            to, own = f"{stack}/layer_{i}", f"{at}.layers.{i}"
            q, k, v, o = (f"{own}.self_attn.{x}_proj" for x in ("q", "k", "v", "out"))
            put(f"{to}/self_attention/linear_0", q, k, v)
            put(f"{to}/self_attention/linear_1", o)
            put_norm(f"{to}/self_attention/layer_norm", f"{own}.self_attn_layer_norm")
            if stack == "decoder":
                q, k, v, o = (f"{own}.encoder_attn.{x}_proj" for x in ("q", "k", "v", "out"))
                for number, names in enumerate(((q,), (k, v), (o,))):
                    put(f"{to}/attention/linear_{number}", *names)
                put_norm(f"{to}/attention/layer_norm", f"{own}.encoder_attn_layer_norm")
            put(f"{to}/ffn/linear_0", f"{own}.fc1")
            put(f"{to}/ffn/linear_1", f"{own}.fc2")
            put_norm(f"{to}/ffn/layer_norm", f"{own}.final_layer_norm")
    found["decoder/projection/weight"] = t["model.shared.weight"][:n_rows]
    if "final_logits_bias" in t:
        found["decoder/projection/bias"] = t["final_logits_bias"][0, :n_rows]
    found["decoder/start_from_zero_embedding"] = np.int8(family == "marian")
    return found


def _of_t5(config: Mapping[str, Any], t: Tensors) -> Tensors:
    found = Tensors()
    for stack, n in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        table = "embeddings" + "_0" * (stack == "encoder")
        gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in t
        found |= {
            f"{stack}/num_heads": np.int16(config["num_heads"]),
            f"{stack}/pre_norm": np.int8(1),
            f"{stack}/activation": np.int8(_ACTIVATIONS["gelu_new" if gated else "relu"]),
            f"{stack}/scale_embeddings": np.int8(0),
            f"{stack}/{table}/weight": t["shared.weight"],
            f"{stack}/layer_norm/gamma": t[f"{stack}.final_layer_norm.weight"],
        }
        for i in range(config[n]):
            to, own = f"{stack}/layer_{i}", f"{stack}.block.{i}.layer"
            last = 2 if stack == "decoder" else 1
            a = f"{own}.0.SelfAttention"
            biases = f"{a}.relative_attention_bias.weight"
            if biases not in t:
                biases = biases.replace(f"block.{i}.", "block.0.")
            found |= {
                f"{to}/self_attention/queries_scale": np.float32(1),
                f"{to}/self_attention/linear_0/weight": np.concatenate(
                    [t[f"{a}.{x}.weight"] for x in "qkv"]
                ),
                f"{to}/self_attention/linear_1/weight": t[f"{a}.o.weight"],
                f"{to}/self_attention/layer_norm/gamma": t[f"{own}.0.layer_norm.weight"],
                f"{to}/self_attention/relative_attention_bias": t[biases],
                f"{to}/self_attention/relative_attention_max_distance": np.int32(
                    config["relative_attention_max_distance"]
                ),
                f"{to}/ffn/layer_norm/gamma": t[f"{own}.{last}.layer_norm.weight"],
                f"{to}/ffn/linear_1/weight": t[f"{own}.{last}.DenseReluDense.wo.weight"],
            }
            names = ("wi_0", "wi_1") if gated else ("wi",)
            for end, name in zip(("linear_0", "linear_0_noact"), names, strict=False):
                found[f"{to}/ffn/{end}/weight"] = t[f"{own}.{last}.DenseReluDense.{name}.weight"]
            if stack == "decoder":
                a = f"{own}.1.EncDecAttention"
                found |= {
                    f"{to}/attention/queries_scale": np.float32(1),
                    f"{to}/attention/linear_0/weight": t[f"{a}.q.weight"],
                    f"{to}/attention/linear_1/weight": np.concatenate(
                        [t[f"{a}.{x}.weight"] for x in "kv"]
                    ),
                    f"{to}/attention/linear_2/weight": t[f"{a}.o.weight"],
                    f"{to}/attention/layer_norm/gamma": t[f"{own}.1.layer_norm.weight"],
                }
    head = t.get("lm_head.weight")
    found["decoder/projection/weight"] = t["shared.weight"] if head is None else head
    if head is None:
        found["decoder/scale_outputs"] = np.float32(config["d_model"] ** -0.5)
    return found


def ctranslate2(
    path: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    stored: Callable[[str, Array], list[tuple[str, Array]]] = lambda name, one: [(name, one)],
) -> Path:
    """A converted folder. stored: a variable as it is written, perhaps with another beside it."""
    path.mkdir()
    of = _of_t5 if "d_kv" in config else _of_bart
    found, aliases = of(config, tensors), list[tuple[str, str]]()
    variables = list[ct2.Variable]()
    first: dict[bytes, str] = {}
    for name in sorted(found):
        one = found[name]
        key = repr(one.shape).encode() + np.asarray(one).tobytes()
        if one.ndim and first.setdefault(key, name) != name:
            aliases.append((name, first[key]))
            continue
        for own, values in stored(name, one) if one.ndim else [(name, one)]:
            kind = ct2.TYPES[values.dtype.name]
            variables.append(ct2.Variable(own, values.shape, kind, values.tobytes()))
    (path / "model.bin").write_bytes(ct2.build(variables, aliases))
    start = config["decoder_start_token_id"]
    texts = [f"w{i}" for i in range(config["vocab_size"] - (config["model_type"] == "marian"))]
    said = {"decoder_start_token": f"w{start}", "eos_token": "w1", "layer_norm_epsilon": None}
    (path / "config.json").write_text(json.dumps(said))
    (path / "shared_vocabulary.json").write_text(json.dumps(texts))
    return path


def marian(tensors: Tensors) -> Tensors:
    """Arrays by Marian's names; matrices as rows of outputs. Without the start."""
    found = {
        "Wemb": tensors["model.shared.weight"][:-1],
        "decoder_ff_logit_out_b": tensors["final_logits_bias"][:, :-1],
    }
    parts = {"self_attn": "self", "encoder_attn": "context"}
    for name, one in tensors.items():
        words = name.split(".")
        if len(words) < 5:
            continue
        at = f"{words[1]}_l{int(words[3]) + 1}"
        if words[4] in parts:
            letter = words[5][0]
            kind = "W" if words[-1] == "weight" else "b"
            to = f"{at}_{parts[words[4]]}_{kind}{letter}"
        elif words[4].startswith("fc"):
            to = f"{at}_ffn_{'W' if words[-1] == 'weight' else 'b'}{words[4][2]}"
        else:
            part = parts.get(words[4].removesuffix("_layer_norm"))
            end = "scale" if words[-1] == "weight" else "bias"
            to = f"{at}_{f'{part}_Wo' if part else 'ffn_ffn'}_ln_{end}"
        found[to.replace("_Wou", "_Wo")] = one if one.ndim > 1 else one[None]
    return found


def marian_config(config: Mapping[str, Any]) -> bytes:
    """The options; `said`, if it is there, instead."""
    if "said" in config:
        return bytes(config["said"])
    said = {
        "dim-vocabs": "\n  - 89\n  - 89",
        "enc-depth": config["encoder_layers"],
        "dec-depth": config["decoder_layers"],
        "tied-embeddings-all": "true",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-dim-ffn": config["encoder_ffn_dim"],
        "transformer-ffn-activation": "swish",
        "transformer-heads": config["encoder_attention_heads"],
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-preprocess": '""',
        "type": "transformer",
    }
    return "".join(f"{key}: {value}\n" for key, value in said.items()).encode() + b"\0"


def is_marian_matrix(name: str) -> bool:
    return name == "Wemb" or ("_W" in name and "_ln_" not in name)


def write_npz(path: Path, config: Mapping[str, Any], arrays: Tensors) -> None:
    told = np.frombuffer(marian_config(config), np.int8)
    plain = {
        name: np.ascontiguousarray(one.T) if is_marian_matrix(name) and name != "Wemb" else one
        for name, one in arrays.items()
    }
    np.savez(path, **{"special:model.yml": told, **plain})


def write_bin(path: Path, config: Mapping[str, Any], arrays: Mapping[str, Array | Codes]) -> None:
    told = marian_config(config)
    items = [marian_cases.Item("special:model.yml", marian_cases.BYTES, (len(told),), told)]
    for name, one in arrays.items():
        lies_transposed = is_marian_matrix(name) and name != "Wemb"
        values = one.codes if isinstance(one, Codes) else one
        shape = values.shape[::-1] if lies_transposed else values.shape
        if isinstance(one, Codes):
            data, kind = values.tobytes() + one.divisors.tobytes(), marian_cases.CODES
        else:
            data, kind = (values.T if lies_transposed else values).tobytes(), marian_cases.F32
        items.append(marian_cases.Item(name, kind, shape, data))
    path.write_bytes(marian_cases.build(items))
