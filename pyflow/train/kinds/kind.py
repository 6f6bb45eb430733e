"""What the kinds of speculators have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from pyflow.train.kinds.head import Head
from pyflow.train.library import Floats, Parameters, Tensor

Shapes = dict[str, tuple[int, ...]]


class Kind(ABC):
    """The network of a speculator: its parameters, its loss, and how its folder describes it."""

    name: ClassVar[str]
    prefix: ClassVar[str] = ""
    """Of all names in the file."""
    takes_features: ClassVar[bool] = False
    """Whether it reads whole texts, after the first layers of the base."""
    n_heads: int
    """How many losses it has."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """Of each parameter, by its name in the file."""

    def initial(self, rng: np.random.Generator) -> dict[str, Floats]:
        """Matrices N(0, 1 / fan in), vectors of ones, biases of zeros; (outputs, inputs)."""
        found: dict[str, Floats] = {}
        for name, shape in self.shapes().items():
            if len(shape) > 1:
                values = rng.standard_normal(shape, np.float32)
                found[name] = values * np.float32(shape[-1] ** -0.5)
            else:
                found[name] = np.full(shape, 0 if name.endswith("bias") else 1, np.float32)
        return found

    @abstractmethod
    def config(self, n_tokens: int) -> dict[str, Any]:
        """config.json, without the key `pyflow`. n_tokens: of the draft vocabulary."""

    def own_config(self) -> dict[str, Any]:
        """Keys for `pyflow` in config.json, beside the base."""
        return {}


class Heads(Kind):
    """Speculators that guess from the state after the base's last norm, a head for each place."""

    takes_tokens: ClassVar[bool] = True
    """Whether a head sees the token before the one that it guesses."""

    @abstractmethod
    def start(self, parameters: Parameters, z: Tensor) -> Tensor:
        """The state before the first head, of the inputs (n, n_embd) to the base's head."""

    @abstractmethod
    def stage(
        self, parameters: Parameters, i: int, state: Tensor, embedded: Tensor | None, dtype: Any
    ) -> tuple[Tensor, Tensor]:
        """The state after head i, and what the base's head takes, (n, n_embd).

        embedded: rows of the embedding over its root mean square, of the token before the one that
        is guessed: for head 0, the one drawn from the base. None unless `takes_tokens`.
        """

    def losses(
        self, parameters: Parameters, head: Head, z: Tensor, embedded: Tensor | None, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A value with the gradient of the sum of losses, and each head's loss (n_heads,).

        embedded: (n, n_heads, n_embd) of the true tokens, or None. wanted: columns of the head that
        are right, (n, n_heads), or OUTSIDE.
        """
        state = self.start(parameters, z)
        values, losses = [], []
        for i in range(self.n_heads):
            seen = None if embedded is None else embedded[:, i]
            state, x = self.stage(parameters, i, state, seen, head.dtype)
            value, loss = head.loss(x, wanted[:, i])
            values.append(value)
            losses.append(loss)
        return sum(values), losses[0].new_tensor([float(loss) for loss in losses])
