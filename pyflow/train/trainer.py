"""AdamW over the parameters of a kind, and its state in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pyflow import formats
from pyflow.errors import FormatError
from pyflow.formats.side_files import parse_json
from pyflow.train.folder import write_tensors
from pyflow.train.kinds.head import Head
from pyflow.train.library import Floats, Tensor, library

_BETAS = (0.9, 0.95)
_CLIP = 1.0
_WARM_UP = 50
_LEAST_RATE = 1 / 20
"""Of the peak, at the end of the cosine."""
_FACTS = "facts"  # a key of the file's metadata
_MOMENTS = {"m.": "exp_avg", "v.": "exp_avg_sq"}


def rate_at(step: int, n_steps: int, peak: float) -> float:
    """A linear warm-up, and a cosine down to a twentieth."""
    warm_up = min(_WARM_UP, max(1, n_steps // 10))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = min(1.0, (step - warm_up) / max(1, n_steps - warm_up))
    share = _LEAST_RATE + (1 - _LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))
    return peak * share


class Check(msgspec.Struct, kw_only=True):
    """An evaluation: the held-out loss of each head."""

    step: int
    losses: list[float]


class Facts(msgspec.Struct, kw_only=True):
    """The state of a training beside its tensors."""

    step: int = 0
    best: float | None = None
    """The least sum of held-out losses, after `best_step` steps."""
    best_step: int = 0
    bad: int = 0
    """Evaluations since then."""
    history: list[Check] = []
    begins: dict[str, int] = {}
    """The first step of each part of the answers."""
    covered: float = 0.0
    """Share of the answers' tokens that are in the draft vocabulary."""
    n_tokens: int = 0
    """Of the answers that the draft vocabulary is of."""
    n_updates: int = 0


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

    def save(self, path: Path, facts: Facts) -> None:
        """Writes parameters, moments and facts, at once."""
        tensors = {f"p.{name}": values for name, values in self.values().items()}
        for name, p in self.parameters.items():
            state = self._optimizer.state.get(p, {})
            for part, moment in _MOMENTS.items():
                if moment in state:
                    tensors[part + name] = state[moment].cpu().numpy()
                    facts.n_updates = int(state["step"])
        write_tensors(path, tensors, {_FACTS: msgspec.json.encode(facts).decode()})

    def restore(self, path: Path) -> Facts:
        """Reads what `save` wrote; returns the facts. FormatError: it is not of such a training."""
        torch = library()
        checkpoint = formats.open(path)
        facts = parse_json(
            str(checkpoint.metadata.get(_FACTS, "")).encode(), Facts, source=str(path)
        )

        def read(name: str, like: Tensor) -> Tensor:
            values = np.array(checkpoint.array(name))
            if values.shape != tuple(like.shape) or values.dtype != np.float32:
                raise FormatError(
                    f"{path}: tensor {name}: expected F32 of shape {tuple(like.shape)}, found "
                    f"{values.dtype} of {values.shape}"
                )
            return torch.from_numpy(values).to(like.device)

        for name, p in self.parameters.items():
            with torch.no_grad():
                p.copy_(read(f"p.{name}", p))
            if facts.n_updates:
                self._optimizer.state[p] = {
                    "step": torch.tensor(float(facts.n_updates)),
                    **{moment: read(part + name, p) for part, moment in _MOMENTS.items()},
                }
        return facts
