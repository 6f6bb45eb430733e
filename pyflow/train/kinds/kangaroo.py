"""The adapter of Kangaroo (Liu et al., 2024): one attention between an early exit and the head.

    y = f + attention(w * rms(f));  logits = rows of the base's head @ (v * rms(y))

f is the residual stream after the base's first layers. The adapter learns what the whole model says
at the same position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyflow.train.kinds.head import Head, product
from pyflow.train.kinds.kind import Kind, Shapes
from pyflow.train.library import Floats, Parameters, Tensor, library, rms_normed

_ATTENTION = "layers.0.self_attn."


@dataclass(frozen=True, slots=True, kw_only=True)
class Kangaroo(Kind):
    """Heads of the attention are as many and as large as the base's."""

    name: ClassVar[str] = "kangaroo"
    takes_features: ClassVar[bool] = True
    n_heads = 1
    n_embd: int
    n_vocab: int
    n_query: int
    n_keys: int
    head_dim: int
    rope_theta: float
    eps: float
    n_ctx: int
    exit_layer: int

    def shapes(self) -> Shapes:
        n_query, n_keys = self.n_query * self.head_dim, self.n_keys * self.head_dim
        return {
            "layers.0.input_layernorm.weight": (self.n_embd,),
            f"{_ATTENTION}q_proj.weight": (n_query, self.n_embd),
            f"{_ATTENTION}k_proj.weight": (n_keys, self.n_embd),
            f"{_ATTENTION}v_proj.weight": (n_keys, self.n_embd),
            f"{_ATTENTION}o_proj.weight": (self.n_embd, n_query),
            "norm.weight": (self.n_embd,),
        }

    def initial(self, rng: np.random.Generator) -> dict[str, Floats]:
        """The attention adds nothing at first."""
        found = Kind.initial(self, rng)
        found[f"{_ATTENTION}o_proj.weight"][:] = 0
        return found

    def outputs(self, parameters: Parameters, features: Tensor, dtype: Any) -> Tensor:
        """What the base's head takes, (texts, positions, n_embd), of features in that shape."""
        torch = library()
        n, length, _ = features.shape

        def heads(name: str, count: int) -> Tensor:
            weight = parameters[f"{_ATTENTION}{name}_proj.weight"]
            return product(normed, weight, dtype).view(n, length, count, -1).transpose(1, 2)

        normed = rms_normed(features, self.eps) * parameters["layers.0.input_layernorm.weight"]
        q, k = self._turned(heads("q", self.n_query)), self._turned(heads("k", self.n_keys))
        shared = self.n_query // self.n_keys
        k, v = (x.repeat_interleave(shared, 1) for x in (k, heads("v", self.n_keys)))
        scores = q @ k.transpose(2, 3) * self.head_dim**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        mixed = mixed.transpose(1, 2).reshape(n, length, -1)
        y = features + product(mixed, parameters[f"{_ATTENTION}o_proj.weight"], dtype)
        return rms_normed(y, self.eps) * parameters["norm.weight"]

    def _turned(self, x: Tensor) -> Tensor:
        """Pairs (i, i + head_dim / 2) turned by their positions, which count from 0."""
        torch = library()
        half = self.head_dim // 2
        places = torch.arange(x.shape[2], dtype=torch.float64, device=x.device)
        pairs = torch.arange(half, dtype=torch.float64, device=x.device)
        angles = places[:, None] * self.rope_theta ** (-pairs / half)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def losses(
        self, parameters: Parameters, head: Head, features: Tensor, z: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As of `Heads`. z: (n, n_embd), the whole model's inputs to the head; rows: their places
        among the positions of all features."""
        x = self.outputs(parameters, features, head.dtype).reshape(-1, self.n_embd)
        value, loss = head.soft_loss(x[rows], z)
        return value, loss[None]

    def config(self, n_tokens: int) -> dict[str, Any]:  # noqa: ARG002
        return {
            "architectures": ["LlamaModel"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": self.n_embd,
            "num_attention_heads": self.n_query,
            "num_key_value_heads": self.n_keys,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.n_ctx,
            "vocab_size": self.n_vocab,
            "torch_dtype": "float32",
        }

    def own_config(self) -> dict[str, Any]:
        return {"exit_layer": self.exit_layer}
