"""AdamW over the parameters of a kind, and its state in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyflow import formats
from pyflow.train.folder import write_tensors
from pyflow.train.kinds.head import Head
from pyflow.train.library import Floats, Tensor, library

_BETAS = (0.9, 0.95)
_CLIP = 1.0
_WARM_UP = 50
_LEAST_RATE = 1 / 20
"""Of the peak, at the end of the cosine."""
_MOMENTS = {"m.": "exp_avg", "v.": "exp_avg_sq"}


def rate_at(step: int, n_steps: int, peak: float) -> float:
    """A linear warm-up, and a cosine down to a twentieth."""
    warm_up = min(_WARM_UP, max(1, n_steps // 10))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = min(1.0, (step - warm_up) / max(1, n_steps - warm_up))
    share = _LEAST_RATE + (1 - _LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))
    return peak * share


class Trainer:
    """Parameters that learn, in float32."""

    def __init__(
        self, kind: Any, head: Head, initial: Mapping[str, Floats], *, rate: float, decay: float
    ) -> None:
        """decay: of matrices."""
        torch = library()
        self.kind, self.head, self._rate = kind, head, rate
        self.parameters: dict[str, Tensor] = {
            name: torch.from_numpy(values.copy()).to(head.device).requires_grad_()
            for name, values in initial.items()
        }
        each = self.parameters.values()
        groups = [
            {"params": [p for p in each if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in each if p.ndim == 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=rate, betas=_BETAS
        )

    def step(self, batch: tuple[Tensor, ...], step: int, n_steps: int) -> Tensor:
        """One update; returns the losses before it, (n_heads,)."""
        self._optimizer.zero_grad(set_to_none=True)
        value, losses = self.kind.losses(self.parameters, self.head, *batch)
        value.backward()
        library().nn.utils.clip_grad_norm_([*self.parameters.values()], _CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = rate_at(step, n_steps, self._rate)
        self._optimizer.step()
        return losses

    def losses(self, batch: tuple[Tensor, ...]) -> Tensor:
        with library().no_grad():
            return self.kind.losses(self.parameters, self.head, *batch)[1]

    def values(self) -> dict[str, Floats]:
        """The parameters as arrays."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameters.items()}

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Writes parameters, moments and facts, at once."""
        tensors = {f"p.{name}": values for name, values in self.values().items()}
        n_updates = 0
        for name, p in self.parameters.items():
            state = self._optimizer.state.get(p, {})
            for part, moment in _MOMENTS.items():
                if moment in state:
                    tensors[part + name] = state[moment].cpu().numpy()
                    n_updates = int(state["step"])
        about = {"facts": json.dumps({**facts, "n_updates": n_updates})}
        write_tensors(path, tensors, about)

    def restore(self, path: Path) -> dict[str, Any]:
        """Reads what `save` wrote; returns the facts."""
        torch = library()
        checkpoint = formats.open(path)
        facts: dict[str, Any] = json.loads(checkpoint.metadata["facts"])
        there = {tensor.name for tensor in checkpoint.tensors}
        for name, p in self.parameters.items():
            with torch.no_grad():
                p.copy_(torch.from_numpy(np.array(checkpoint.array(f"p.{name}"))))
            if f"m.{name}" in there:
                self._optimizer.state[p] = {
                    "step": torch.tensor(float(facts["n_updates"])),
                    **{
                        moment: torch.from_numpy(np.array(checkpoint.array(part + name))).to(
                            p.device
                        )
                        for part, moment in _MOMENTS.items()
                    },
                }
        return facts
