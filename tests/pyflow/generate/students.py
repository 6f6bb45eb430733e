"""Students of Marian without pyflow: their files, and what they say in float64."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.catalogue import marian

Floats = NDArray[np.float64]
FILES = ("model.bin", "tokenizer.json")
CONFIG = """dec-cell: ssru
dec-depth: 2
enc-depth: 2
tied-embeddings-all: true
transformer-decoder-autoreg: rnn
transformer-dim-ffn: {n_ff}
transformer-ffn-activation: relu
transformer-heads: {n_heads}
transformer-postprocess-emb: d
type: transformer
"""


class Student:
    """Weights by Marian's names, matrices with a row per output."""

    def __init__(self, weights: Mapping[str, Floats], n_heads: int) -> None:
        self.weights, self.n_heads = weights, n_heads

    def encode(self, source: Sequence[int]) -> Floats:
        x = self._embed(source)
        for at in self._layers("encoder", "self_Wq"):
            x = self._norm(x + self._attend(f"{at}_self", x, x), f"{at}_self_Wo_ln")
            x = self._feed(at, x)
        return x

    def logits(self, tokens: Sequence[int], source: Sequence[int]) -> Floats:
        """After the start, and after each of the tokens."""
        w, states = self.weights, self.encode(source)
        x = np.vstack([np.zeros_like(states[:1]), self._embed(tokens, scale_only=True)])
        x = x + _positions(*x.shape)
        for at in self._layers("decoder", "rnn_W"):
            f = 1 / (1 + np.exp(-(x @ w[f"{at}_rnn_Wf"].T + w[f"{at}_rnn_bf"])))
            values, state = x @ w[f"{at}_rnn_W"].T, np.zeros(x.shape[1])
            out = np.empty_like(x)
            for i in range(len(x)):
                state = f[i] * state + (1 - f[i]) * values[i]
                out[i] = np.maximum(state, 0)
            x = self._norm(x + out, f"{at}_rnn_ffn_ln")
            x = self._norm(x + self._attend(f"{at}_context", x, states), f"{at}_context_Wo_ln")
            x = self._feed(at, x)
        found: Floats = x @ w["Wemb"].T + w["decoder_ff_logit_out_b"]
        return found

    def greedy(self, source: Sequence[int], most: int, end: int = 0) -> tuple[list[int], float]:
        """The likeliest token each time, and by how much the closest call was won."""
        tokens: list[int] = []
        margin = np.inf
        while len(tokens) < most and end not in tokens:
            last = self.logits(tokens, source)[-1]
            second, first = np.argsort(last)[-2:]
            margin = min(margin, last[first] - last[second])
            tokens.append(int(first))
        return tokens, float(margin)

    def _layers(self, stack: str, part: str) -> Iterator[str]:
        n = sum(name.startswith(stack) and name.endswith(part) for name in self.weights)
        return (f"{stack}_l{i + 1}" for i in range(n))

    def _embed(self, ids: Sequence[int], *, scale_only: bool = False) -> Floats:
        table = self.weights["Wemb"]
        x: Floats = table[np.array(ids, int)] * np.sqrt(table.shape[1])
        return x if scale_only else x + _positions(*x.shape)

    def _norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-9)
        found: Floats = scaled * self.weights[f"{name}_scale"] + self.weights[f"{name}_bias"]
        return found

    def _feed(self, at: str, x: Floats) -> Floats:
        w = self.weights
        inner = np.maximum(x @ w[f"{at}_ffn_W1"].T + w[f"{at}_ffn_b1"], 0)
        return self._norm(x + inner @ w[f"{at}_ffn_W2"].T + w[f"{at}_ffn_b2"], f"{at}_ffn_ffn_ln")

    def _attend(self, at: str, x: Floats, seen: Floats) -> Floats:
        w, n = self.weights, self.n_heads

        def heads(rows: Floats, name: str) -> Floats:
            y = rows @ w[f"{at}_W{name}"].T + w[f"{at}_b{name}"]
            return y.reshape(len(rows), n, -1).transpose(1, 0, 2)

        q, k, v = heads(x, "q"), heads(seen, "k"), heads(seen, "v")
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(2, keepdims=True))
        mixed = (weights / weights.sum(2, keepdims=True)) @ v
        found: Floats = mixed.transpose(1, 0, 2).reshape(x.shape) @ w[f"{at}_Wo"].T + w[f"{at}_bo"]
        return found


def _positions(n: int, dim: int) -> Floats:
    half = dim // 2
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(half) / (half - 1))
    return np.hstack([np.sin(angles), np.cos(angles)])


def random_student(n_vocab: int, dim: int, n_ff: int) -> dict[str, Any]:
    """Arrays of a file: int8 codes and a multiplier, or float32 values; two layers a stack."""
    random = np.random.default_rng(7)

    def matrix(rows: int, columns: int, gain: float = 1.5) -> tuple[NDArray[np.int8], float]:
        codes = random.integers(-127, 128, (rows, columns)).astype(np.int8)
        return codes, float(np.float32(73 * np.sqrt(columns) / gain))

    def vector(n: int, mean: float = 0) -> NDArray[np.float32]:
        return random.normal(mean, 0.2, (1, n)).astype(np.float32)

    found: dict[str, Any] = {"Wemb": matrix(n_vocab, dim, 1.0)}
    found["decoder_ff_logit_out_b"] = vector(n_vocab)
    for stack, kind in (("encoder", "self"), ("decoder", "context")):
        for at in (f"{stack}_l1", f"{stack}_l2"):
            for name in "qkvo":
                found[f"{at}_{kind}_W{name}"] = matrix(dim, dim)
                found[f"{at}_{kind}_b{name}"] = vector(dim)
            norms = [f"{at}_{kind}_Wo_ln", f"{at}_ffn_ffn_ln"]
            if stack == "decoder":
                found |= {f"{at}_rnn_W": matrix(dim, dim), f"{at}_rnn_Wf": matrix(dim, dim)}
                found[f"{at}_rnn_bf"] = vector(dim)
                norms.append(f"{at}_rnn_ffn_ln")
            for norm in norms:
                found |= {f"{norm}_scale": vector(dim, 1), f"{norm}_bias": vector(dim)}
            found |= {f"{at}_ffn_W1": matrix(n_ff, dim), f"{at}_ffn_b1": vector(n_ff)}
            found |= {f"{at}_ffn_W2": matrix(dim, n_ff), f"{at}_ffn_b2": vector(dim)}
    return found


def floats(arrays: Mapping[str, Any]) -> dict[str, Floats]:
    """The values that arrays of a file stand for."""
    return {
        name: array[0] / np.float64(array[1]) if isinstance(array, tuple) else array.astype(float)
        for name, array in arrays.items()
    }


def write(path: Path, arrays: Mapping[str, Any], *, n_ff: int, n_heads: int) -> None:
    """A model.bin of Marian."""
    config = CONFIG.format(n_ff=n_ff, n_heads=n_heads).encode() + b"\0"
    records: list[tuple[bytes, int, tuple[int, ...], bytes]] = [
        (b"special:model.yml\0", 0x100 + 1, (len(config),), config)
    ]
    for name, array in arrays.items():
        if isinstance(array, tuple):
            codes, multiplier = array
            shape = codes.shape if name == "Wemb" else codes.shape[::-1]
            data = codes.tobytes() + np.float32(multiplier).tobytes() + bytes(252)
            records.append((f"{name}\0".encode(), 0x4101, shape, data))
        else:
            records.append((f"{name}\0".encode(), 0x404, array.shape, array.tobytes()))
    out = struct.pack("<QQ", 1, len(records))
    for name_bytes, kind, shape, data in records:
        out += struct.pack("<QQQQ", len(name_bytes), kind, len(shape), len(data))
    out += b"".join(record[0] for record in records)
    out += b"".join(struct.pack(f"<{len(r[2])}i", *r[2]) for r in records)
    padding = -(len(out) + 8) % 256
    out += struct.pack("<Q", padding) + bytes(padding)
    path.write_bytes(out + b"".join(record[3] for record in records))


def write_tokenizer(path: Path, n_vocab: int) -> None:
    """A tokenizer.json of words w3, w4, ..."""
    vocabulary = [["</s>", 0.0], ["<unk>", 0.0]]
    vocabulary += [[f"\u2581w{i}", -float(i)] for i in range(2, n_vocab)]
    model = {"type": "Unigram", "unk_id": 1, "vocab": vocabulary, "byte_fallback": False}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": space,
                "post_processor": None,
                "decoder": space,
                "model": model,
            }
        )
    )


def add_languages(path: Path, names: Sequence[str]) -> None:
    """Adds tokens of languages after the words; sources begin with the first of them."""
    told = json.loads(path.read_text())
    n = len(told["model"]["vocab"])
    told["added_tokens"] = [
        {"id": n + i, "content": name, "special": True, "normalized": False, "single_word": False}
        | {"lstrip": False, "rstrip": False}
        for i, name in enumerate(names)
    ]
    first, text, end = (
        {"SpecialToken": {"id": names[0], "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    )
    told["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, text, end],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 0}}, end],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]}
            for name, i in ((names[0], n), ("</s>", 0))
        },
    }
    path.write_text(json.dumps(told))


def write_folder(folder: Path) -> Student:
    """A tiny student as pyflow has it after a pull, of 90 words."""
    arrays = random_student(90, 32, 64)
    path = folder.parent / "model.bin"
    write(path, arrays, n_ff=64, n_heads=2)
    write_tokenizer(folder.parent / "tokenizer.json", 90)
    tokenizer = (folder.parent / "tokenizer.json").read_bytes()
    marian.convert(path, tokenizer, folder)
    return Student(floats(arrays), 2)
