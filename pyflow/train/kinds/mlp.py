"""The MLP speculator of Wertheimer et al. (2024), tied to the base's embedding and head.

    s = GELU(w * rms(P s + V e) + b);  logits = rows of the base's head @ (g * (O s))

A stage reads the state before it and the embedding of the token before the guess. In the file,
`proj` is P, `emb_proj` V, `head_proj` O, `head_gain` g, `ln` w and b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyflow.train.kinds.head import product
from pyflow.train.kinds.kind import Heads, Shapes
from pyflow.train.library import Floats, Parameters, Tensor, library, rms_normed

_PREFIX = "speculator."
# Branches at each depth that programs without a tree of their own take.
_BRANCHES = (5, 3, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(Heads):
    """tied: all stages share their weights, P of the first one apart."""

    name: ClassVar[str] = "mlp"
    prefix: ClassVar[str] = _PREFIX
    n_embd: int
    n_vocab: int
    inner: int
    n_heads: int
    tied: bool
    embedding_scale: float

    def shapes(self) -> Shapes:
        found: Shapes = {}
        for i in range(self.n_heads):
            before = self.n_embd if i == 0 else self.inner
            if not self.tied or i < 2:
                found[f"{_PREFIX}proj.{i}.weight"] = (self.inner, before)
            if not self.tied or i < 1:
                found[f"{_PREFIX}emb_proj.{i}.weight"] = (self.inner, self.n_embd)
                found[f"{_PREFIX}ln.{i}.weight"] = (self.inner,)
                found[f"{_PREFIX}ln.{i}.bias"] = (self.inner,)
                found[f"{_PREFIX}head_proj.{i}.weight"] = (self.n_embd, self.inner)
                found[f"{_PREFIX}head_gain.{i}.weight"] = (self.n_embd,)
        return found

    def start(self, parameters: Parameters, z: Tensor) -> Tensor:  # noqa: ARG002
        return rms_normed(z) * 0.5**0.5

    def stage(
        self, parameters: Parameters, i: int, state: Tensor, embedded: Tensor | None, dtype: Any
    ) -> tuple[Tensor, Tensor]:
        def of(name: str, shared: int = 0, part: str = "weight") -> Tensor:
            place = min(i, shared) if self.tied else i
            return parameters[f"{_PREFIX}{name}.{place}.{part}"]

        mixed = product(state, of("proj", 1), dtype) + product(embedded, of("emb_proj"), dtype)
        normed = of("ln") * rms_normed(mixed) + of("ln", part="bias")
        state = library().nn.functional.gelu(normed)
        return state, of("head_gain") * product(state, of("head_proj"), dtype)

    def config(self, n_tokens: int) -> dict[str, Any]:  # noqa: ARG002
        branches = [*_BRANCHES, *[1] * self.n_heads][: self.n_heads]
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "vocab_size": self.n_vocab,
            "emb_dim": self.n_embd,
            "inner_dim": self.inner,
            "n_predict": self.n_heads,
            "top_k_tokens_per_head": branches,
            "n_candidates": 5,
            "tie_weights": self.tied,
            "scale_input": True,
            "torch_dtype": "float32",
        }

    def own_config(self) -> dict[str, Any]:
        scale = self.embedding_scale
        return {"base_embedding": True, "embedding_scale": scale, "base_head": True}


def with_gains(initial: dict[str, Floats], rms: Floats) -> dict[str, Floats]:
    """Gains that begin at the size which the base's head is used to. rms: of each column."""
    return {
        name: rms.astype(np.float32) if ".head_gain." in name else values
        for name, values in initial.items()
    }
