"""Medusa heads (Cai et al., 2024) over the base's own head.

    per layer x = x + SiLU(W x + b), from x = z;  logits = rows of the base's head @ x

W begins at zero, so an untrained head says what the base says. Heads do not see the tokens between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyflow.train.kinds.head import product
from pyflow.train.kinds.kind import Heads, Shapes
from pyflow.train.library import Floats, Parameters, Tensor, library


@dataclass(frozen=True, slots=True, kw_only=True)
class Medusa(Heads):
    """n_layers: residual blocks of each head."""

    name: ClassVar[str] = "medusa"
    takes_tokens: ClassVar[bool] = False
    n_embd: int
    n_vocab: int
    n_heads: int
    n_layers: int
    base_name: str

    def shapes(self) -> Shapes:
        found: Shapes = {}
        for h in range(self.n_heads):
            for j in range(self.n_layers):
                found[f"{h}.{j}.linear.weight"] = (self.n_embd, self.n_embd)
                found[f"{h}.{j}.linear.bias"] = (self.n_embd,)
        return found

    def initial(self, rng: np.random.Generator) -> dict[str, Floats]:  # noqa: ARG002
        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes().items()}

    def start(self, parameters: Parameters, z: Tensor) -> Tensor:  # noqa: ARG002
        return z

    def stage(
        self,
        parameters: Parameters,
        i: int,
        state: Tensor,
        embedded: Tensor | None,  # noqa: ARG002
        dtype: Any,
    ) -> tuple[Tensor, Tensor]:
        x = state
        for j in range(self.n_layers):
            linear = product(x, parameters[f"{i}.{j}.linear.weight"], dtype)
            linear = linear + parameters[f"{i}.{j}.linear.bias"]
            x = x + library().nn.functional.silu(linear)
        return state, x

    def config(self, n_tokens: int) -> dict[str, Any]:
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": self.n_heads,
            "medusa_num_layers": self.n_layers,
            "base_model_name_or_path": self.base_name,
            "hidden_size": self.n_embd,
            "vocab_size": self.n_vocab,
            "original_lm_head": True,
            "truncated_vocab_size": n_tokens,
        }
