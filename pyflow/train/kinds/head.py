"""The frozen head of the base, cut to the draft vocabulary, and losses through it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.train.base import Base
from pyflow.train.library import Tensor, library

OUTSIDE = -1
"""In place of a wanted token that the draft vocabulary lacks, or that is past the text's end."""


class Head:
    """logits = softcap(scale * (rows of `token_map` @ x + bias))."""

    def __init__(self, base: Base, token_map: NDArray[np.int32], device: str, dtype: Any) -> None:
        """dtype: of products; values that come and go have float32, or float64 if it is that."""
        torch = library()
        self.dtype = dtype
        self.plain = torch.float64 if dtype == torch.float64 else torch.float32
        self.device = device
        self.token_map = token_map
        self.places = np.full(base.n_vocab, OUTSIDE, np.int32)
        """By token: its column among the logits."""
        self.places[token_map] = np.arange(len(token_map), dtype=np.int32)
        self._weight = torch.from_numpy(base.head.rows(token_map)).to(device, dtype)
        self._bias = None
        if base.bias is not None:
            self._bias = torch.from_numpy(base.bias[token_map]).to(device, self.plain)
        self._scale, self._softcap = base.scale, base.softcap

    @property
    def n_tokens(self) -> int:
        return len(self.token_map)

    def logits(self, x: Tensor) -> Tensor:
        """(n, n_tokens) of inputs (n, n_embd)."""
        found = (x.to(self.dtype) @ self._weight.T).to(self.plain)
        if self._bias is not None:
            found += self._bias
        if self._scale != 1:
            found *= self._scale
        return self._softcap * (found / self._softcap).tanh() if self._softcap else found

    def log_probabilities(self, x: Tensor) -> Tensor:
        return self.logits(x).log_softmax(-1)

    def loss(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy with these columns (n,), the mean of those that are not OUTSIDE.

        Returns a value whose gradient by x is that of the loss, and the loss. The weights get no
        gradient, so one product forward and one back are all the work.
        """
        torch = library()
        with torch.no_grad():
            is_there = wanted >= 0
            n = is_there.sum().clamp(min=1)
            logits = self.logits(x.detach())
            log_p = logits.log_softmax(-1)
            at = wanted.clamp(min=0).long()[:, None]
            loss = -(log_p.gather(1, at)[:, 0] * is_there).sum() / n
            slope = log_p.exp_()
            slope.scatter_add_(1, at, -torch.ones_like(at, dtype=slope.dtype))
            slope *= (is_there / n)[:, None]
            gradient = self._back(slope, logits)
        return (x * gradient).sum(), loss

    def soft_loss(self, x: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy with what the head says of the teacher's inputs (n, n_embd); see `loss`."""
        torch = library()
        with torch.no_grad():
            logits = self.logits(x.detach())
            log_p = logits.log_softmax(-1)
            wanted = self.logits(teacher).softmax(-1)
            loss = -(wanted * log_p).sum() / max(1, len(x))
            gradient = self._back((log_p.exp_() - wanted) / max(1, len(x)), logits)
        return (x * gradient).sum(), loss

    def _back(self, slope: Tensor, logits: Tensor) -> Tensor:
        """From gradients by the logits to those by the inputs."""
        if self._softcap:
            slope = slope * (1 - (logits / self._softcap).square())
        if self._scale != 1:
            slope = slope * self._scale
        return (slope.to(self.dtype) @ self._weight).to(self.plain)


def product(x: Tensor, weight: Tensor, dtype: Any) -> Tensor:
    """x @ weight.T in this type; the result has the type of x."""
    return (x.to(dtype) @ weight.to(dtype).T).to(x.dtype)
