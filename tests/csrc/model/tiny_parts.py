"""What tiny models are made of: tensors drawn as they are named, plain blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pyflow import _core
from pyflow.specs.block import Block
from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.ffn import Ffn
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.model_spec import Embedding, Head, ModelSpec
from pyflow.specs.parts import Rope

N_EMBD, N_VOCAB, N_FF, EPS = 64, 97, 72, 1e-5
HALF = Rope(tuple(0.7**i for i in range(8)))
PARTIAL = Rope(tuple(0.5**i for i in range(5)))
PARTIAL_PAIRS = Rope(tuple(0.5**i for i in range(3)), magnitude=1.2, interleaved=True)
LONG = Rope(
    HALF.inv_freq,
    long_inv_freq=tuple(0.4 * 0.7**i for i in range(8)),
    long_magnitude=1.3,
    n_ctx_original=70,
)


@dataclass
class Draft:
    """Tensors are drawn as they are named."""

    seed: int = 0
    tensors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def __call__(self, name: str, *shape: int, mean: float = 0.0, size: float = 0.0) -> str:
        rng = np.random.default_rng([self.seed, len(self.tensors)])
        size = size or (1 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.3)
        self.tensors[name] = rng.normal(mean, size, shape).astype(np.float32)
        return name

    def norm(self, name: str, *shape: int) -> str:
        return self(name, *shape, mean=1.0)

    def spec(
        self, *layers: tuple[Block, ...], head: Head | None = None, embedding_scale: float = 1.0
    ) -> ModelSpec:
        return ModelSpec(
            architecture="tiny",
            name="tiny",
            n_vocab=N_VOCAB,
            n_embd=N_EMBD,
            n_ctx_train=4096,
            ropes=(HALF, PARTIAL, PARTIAL_PAIRS, LONG),
            embedding=Embedding(self("embd", N_VOCAB, N_EMBD, size=1.0), embedding_scale),
            layers=layers,
            head=head or Head(self.norm("out_norm", N_EMBD), EPS, "embd"),
        )


def attention(t: Draft, p: str, n_heads: int = 4, n_kv: int = 2, **more: object) -> Attention:
    """Plain attention of heads of 16, h to h, but for what is said otherwise."""
    given: dict[str, Any] = {"input": "h", "output": "h", "rope": 0, "scale": 0.25} | more
    dim = given.setdefault("head_dim", 16)
    value_dim = given.get("value_dim", dim)
    for name, rows in (("q", n_heads * dim), ("k", n_kv * dim), ("v", n_kv * value_dim)):
        if name not in given:
            given[name] = t(p + name, rows, N_EMBD)
    if "o" not in given:
        given["o"] = t(p + "o", N_EMBD, n_heads * value_dim)
    return Attention(n_heads=n_heads, n_kv_heads=n_kv, **given)


def ffn(t: Draft, p: str, **more: object) -> Ffn:
    """A plain gated feed-forward block, h to h, but for what is said otherwise."""
    given: dict[str, object] = {"input": "h", "output": "h", "activation": "silu"} | more
    for name in ("gate", "up"):
        if name not in given:
            given[name] = t(p + name, N_FF, N_EMBD)
    if "down" not in given:
        given["down"] = t(p + "down", N_EMBD, N_FF)
    return Ffn(n_ff=N_FF, **given)  # type: ignore[arg-type]


def around(t: Draft, p: str, block: Block) -> tuple[Block, ...]:
    """Norm, block, add."""
    return (Norm("x", "h", t.norm(p + "norm", N_EMBD), EPS), block, Add("h", "x"))


def write(path: Path, t: Draft) -> _core.Checkpoint:
    safetensors.numpy.save_file(t.tensors, path)
    return _core.SafetensorsFile(path)
