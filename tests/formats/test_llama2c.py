"""The .bin files of llama2.c."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pyflow.formats


def test_tensors_follow_the_order_of_the_format(llama2c_corpus: ModuleType, tmp_path: Path) -> None:
    dim, hidden, layers, heads, kv_heads, vocab, seq = llama2c_corpus.DIMS
    kv = dim // heads * kv_heads
    embedding = [("tok_embeddings", (vocab, dim))]
    attention = [("wq", (dim, dim)), ("wk", (kv, dim)), ("wv", (kv, dim)), ("wo", (dim, dim))]
    ffn = [("w1", (hidden, dim)), ("w2", (dim, hidden)), ("w3", (hidden, dim))]

    def each(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
        return [(f"layers.{i}.{name}", shape) for i in range(layers)]

    blocks = [line for name, shape in attention for line in each(f"attention.{name}", shape)]
    forward = [line for name, shape in ffn for line in each(f"feed_forward.{name}", shape)]
    norms = (each("attention_norm", (dim,)), each("ffn_norm", (dim,)), [("norm", (dim,))])
    orders = {
        0: [*embedding, *norms[0], *blocks, *norms[1], *forward, *norms[2]],
        1: [*norms[0], *norms[1], *norms[2], *embedding, *blocks, *forward],
    }
    tables = [(name, (seq, dim // heads // 2)) for name in ("freqs_cos", "freqs_sin")]
    for name, data in llama2c_corpus.VALID.items():
        path = tmp_path / f"{name}.bin"
        path.write_bytes(data)
        checkpoint = pyflow.formats.open(path)
        version = int(name[8])
        expected = [(f"{n}.weight", shape) for n, shape in orders[version]]
        expected += tables if version == 0 else []
        expected += [("output.weight", (vocab, dim))] if "own" in name else []
        assert [(t.name, t.shape) for t in checkpoint.tensors] == expected
        assert checkpoint.metadata["version"] == version
        assert tuple(checkpoint.metadata.values())[1:] == llama2c_corpus.DIMS
        arrays = [checkpoint.array(t.name).ravel() for t in checkpoint.tensors]
        flat = np.concatenate(arrays)
        assert np.array_equal(flat, np.arange(flat.size, dtype=np.float32))
