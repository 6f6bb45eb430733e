"""Files of speculators with random weights, and their mathematics in float64, from the papers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats.safetensors_writer import NewTensor, SafetensorsWriter

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.float64]


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    """A speculator's folder; float tensors in F32, others in I32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {
        name: np.ascontiguousarray(values, np.float32 if values.dtype.kind == "f" else np.int32)
        for name, values in tensors.items()
    }
    with (folder / "model.safetensors").open("wb") as file:
        writer = SafetensorsWriter(
            file,
            [
                NewTensor(name, a.shape, "F32" if a.dtype.kind == "f" else "I32", a.nbytes)
                for name, a in arrays.items()
            ],
            {},
        )
        for a in arrays.values():
            writer.write(a.reshape(-1).view(np.uint8))
            writer.end_tensor()
        writer.close()
    return folder


def mlp_config(n_vocab: int, n_embd: int, inner: int, n: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": n_vocab,
        "emb_dim": n_embd,
        "inner_dim": inner,
        "n_predict": n,
        "top_k_tokens_per_head": [3] * n,
        "n_candidates": 5,
        **more,
    }


def mlp_tensors(
    n_vocab: int,
    n_embd: int,
    inner: int,
    n: int,
    *,
    tied: bool = False,
    from_base: bool = False,
    token_map: Sequence[int] = (),
    seed: int = 1,
) -> Arrays:
    """Random weights of an MLP speculator. from_base: it uses the model's embedding and head."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> NDArray[np.float64]:
        return np.asarray(rng.normal(size=shape) / math.sqrt(shape[-1]))

    n_guessed = len(token_map) or n_vocab
    out: Arrays = {}
    for i in range(min(n, 2) if tied else n):
        out[f"proj.{i}.weight"] = normal(inner, n_embd if i == 0 else inner)
    for i in range(1 if tied else n):
        out[f"ln.{i}.weight"] = 1 + 0.1 * rng.normal(size=inner)
        out[f"ln.{i}.bias"] = 0.1 * rng.normal(size=inner)
        if from_base:
            out[f"emb_proj.{i}.weight"] = normal(inner, n_embd)
            out[f"head_proj.{i}.weight"] = normal(n_embd, inner)
            out[f"head_gain.{i}.weight"] = 1 + 0.1 * rng.normal(size=n_embd)
        else:
            out[f"emb.{i}.weight"] = normal(n_vocab, inner)
            out[f"head.{i}.weight"] = 3 * normal(n_guessed, inner)
    if token_map:
        out["token_map"] = np.asarray(token_map)
    return {f"speculator.{name}": values for name, values in out.items()}


def medusa_tensors(
    n_vocab: int, n_embd: int, n: int, n_layers: int, *, own_heads: bool = True, seed: int = 1
) -> Arrays:
    rng = np.random.default_rng(seed)
    out: Arrays = {}
    for h in range(n):
        for j in range(n_layers):
            out[f"{h}.{j}.linear.weight"] = rng.normal(size=(n_embd, n_embd)) / math.sqrt(n_embd)
            out[f"{h}.{j}.linear.bias"] = 0.1 * rng.normal(size=n_embd)
        if own_heads:
            out[f"{h}.{n_layers}.weight"] = rng.normal(size=(n_vocab, n_embd)) / math.sqrt(n_embd)
    return out


def rms(x: Rows) -> Rows:
    return np.asarray(x / np.sqrt(np.mean(x * x) + 1e-6))


_erf = np.vectorize(math.erf)


def gelu(x: Rows) -> Rows:
    return np.asarray(x / 2 * (1 + _erf(x / math.sqrt(2))))


def mlp_logits(
    config: Mapping[str, Any],
    tensors: Arrays,
    hidden: Rows,
    tokens: Sequence[int],
    embedding: Rows,
    head: Rows,
) -> list[Rows]:
    """Wertheimer et al., 2024, section 3; with the model's embedding and head where they say so."""
    t = {name.removeprefix("speculator."): np.float64(v) for name, v in tensors.items()}
    n, extension = config["n_predict"], config.get("pyflow", {})
    tied = config.get("tie_weights", False)
    v = 0.5 ** (0.5 / n)
    alpha = math.sqrt((1 - v**2) * config["inner_dim"] / 2) / v
    state = rms(hidden) / math.sqrt(2) if config.get("scale_input") else hidden
    out = []
    for i, token in enumerate(tokens):
        at = 0 if tied else i
        if extension.get("base_embedding"):
            scaled = extension["embedding_scale"] * embedding[token]
            e = t[f"emb_proj.{at}.weight"] @ scaled
        else:
            e = alpha * t[f"emb.{at}.weight"][token]
        state = t[f"proj.{min(i, 1) if tied else i}.weight"] @ state + e
        state = gelu(t[f"ln.{at}.weight"] * rms(state) + t[f"ln.{at}.bias"])
        if extension.get("base_head"):
            rows = head[tensors["speculator.token_map"]]
            out.append(rows @ (t[f"head_gain.{at}.weight"] * (t[f"head_proj.{at}.weight"] @ state)))
        else:
            out.append(t[f"head.{at}.weight"] @ state)
    return out


def medusa_logits(tensors: Arrays, n: int, n_layers: int, hidden: Rows, head: Rows) -> list[Rows]:
    """Cai et al., 2024, section 2.1."""
    out = []
    for h in range(n):
        x = hidden
        for j in range(n_layers):
            inner = np.float64(tensors[f"{h}.{j}.linear.weight"]) @ x
            inner = inner + tensors[f"{h}.{j}.linear.bias"]
            x = x + inner / (1 + np.exp(-inner))
        own = tensors.get(f"{h}.{n_layers}.weight")
        out.append((head if own is None else np.float64(own)) @ x)
    return out


def kangaroo_config(
    n_vocab: int, n_embd: int, n_heads: int, n_kv_heads: int, exit_layer: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaModel"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": n_embd,
        "vocab_size": n_vocab,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "pyflow": {"exit_layer": exit_layer},
        **more,
    }


def kangaroo_tensors(
    n_embd: int, n_heads: int, n_kv_heads: int, *, token_map: Sequence[int] = (), seed: int = 1
) -> Arrays:
    rng = np.random.default_rng(seed)
    dim = n_embd // n_heads

    def normal(*shape: int) -> NDArray[np.float64]:
        return np.asarray(rng.normal(size=shape) / math.sqrt(shape[-1]))

    out: Arrays = {
        "layers.0.input_layernorm.weight": 1 + 0.1 * rng.normal(size=n_embd),
        "layers.0.self_attn.q_proj.weight": normal(n_heads * dim, n_embd),
        "layers.0.self_attn.k_proj.weight": normal(n_kv_heads * dim, n_embd),
        "layers.0.self_attn.v_proj.weight": normal(n_kv_heads * dim, n_embd),
        "layers.0.self_attn.o_proj.weight": normal(n_embd, n_heads * dim),
        "norm.weight": 1 + 0.1 * rng.normal(size=n_embd),
    }
    if token_map:
        out["token_map"] = np.asarray(token_map)
    return out


def kangaroo_hidden(
    config: Mapping[str, Any], tensors: Arrays, features: Rows
) -> tuple[Rows, Rows]:
    """Liu et al., 2024, section 3.2: the adapter's output at each position, before and after its
    last norm."""
    t = {name: np.float64(v) for name, v in tensors.items()}
    eps = config["rms_norm_eps"]

    def normed(x: Rows, weight: str) -> Rows:
        return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * t[weight])

    n, d = features.shape
    n_heads, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim = d // n_heads
    h = normed(features, "layers.0.input_layernorm.weight")
    part = "layers.0.self_attn.{}_proj.weight".format
    q, k, v = (
        (h @ t[part(name)].T).reshape(n, heads, dim)
        for name, heads in (("q", n_heads), ("k", n_kv), ("v", n_kv))
    )
    angles = np.arange(n)[:, None] * config["rope_theta"] ** (-2 * np.arange(dim // 2) / dim)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def turned(x: Rows) -> Rows:
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    q, k = turned(q), turned(k)
    mixed = np.zeros((n, n_heads, dim))
    for head in range(n_heads):
        kv = head // (n_heads // n_kv)
        scores = q[:, head] @ k[:, kv].T / math.sqrt(dim)
        scores[np.triu_indices(n, 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
    y = features + mixed.reshape(n, -1) @ t[part("o")].T
    return np.asarray(y), normed(y, "norm.weight")
