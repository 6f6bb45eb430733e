"""What a training is to do. A training that goes on must have the same settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.model_spec import ModelSpec
from pyflow.train.base import Base
from pyflow.train.kinds.kangaroo import Kangaroo
from pyflow.train.kinds.kind import Kind
from pyflow.train.kinds.medusa import Medusa
from pyflow.train.kinds.mlp import Mlp

KINDS = ("mlp", "medusa", "kangaroo")
# Vocabularies up to this size are drafted from by the smaller number.
_LARGE_VOCAB, _FEW, _MANY = 65536, 8192, 16384
# Learning rate at its peak: 2e-3 was right for 576 columns, 1e-3 for 1536.
_RATE, _RATE_COLUMNS, _RATE_KANGAROO = 2e-3, 768, 5e-4
_AGAIN = 0.25  # of that, for parameters that have been trained
_EPOCHS = {"mlp": 2, "medusa": 2, "kangaroo": 3}
_PROMPT_SHARE = 2.5  # positions of an answer with its prompt over those drawn, for Kangaroo


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """0 and None stand for a default that depends on the model; `of` fills it in."""

    kind: str
    n_heads: int = 3
    n_layers: int = 1
    """Of each Medusa head."""
    inner: int = 0
    tied: bool | None = None
    exit_layer: int = 0
    draft_vocab: int = 0
    n_tokens: int = 1_000_000
    """Of the model's own answers."""
    text_tokens: int | None = None
    """Of the given texts, which are learned first."""
    minutes: float | None = None
    n_steps: int | None = None
    batch: int = 1024
    rate: float = 0.0
    decay: float = 0.05
    seed: int = 1
    n_parallel: int = 96
    cache_nbytes: int = 4 << 30
    device: str = "cpu"
    init: str | None = None
    """The folder of a speculator whose parameters and draft vocabulary are gone on from."""

    def of(self, spec: ModelSpec) -> dict[str, Any]:
        """All settings for a model, as JSON. ShapeError: the model has no such layer."""
        d, n_vocab = spec.n_embd, spec.n_vocab
        exit_layer = 0
        rate = _RATE * min(1.0, _RATE_COLUMNS / d)
        if self.kind == "kangaroo":
            rate = _RATE_KANGAROO
            exit_layer = self.exit_layer or max(2, round(spec.n_layers / 12))
            if exit_layer >= spec.n_layers:
                raise ShapeError(
                    f"exit layer: expected 1 to {spec.n_layers - 1}, found {exit_layer}; "
                    f"{spec.name} has {spec.n_layers} layers"
                )
        least = _FEW if n_vocab <= _LARGE_VOCAB else _MANY
        if self.init is not None:
            rate, least = _AGAIN * rate, n_vocab
        n_text = self.n_tokens // 10 if self.text_tokens is None else self.text_tokens
        return {
            "kind": self.kind,
            "n_heads": self.n_heads,
            "n_layers": self.n_layers,
            "inner": self.inner or max(64, min(1024 if d <= 1024 else d, 4096)),
            "tied": d > 1024 if self.tied is None else self.tied,
            "exit_layer": exit_layer,
            "draft_vocab": min(n_vocab, self.draft_vocab or least),
            "n_tokens": self.n_tokens,
            "text_tokens": n_text,
            "minutes": self.minutes,
            "n_steps": self.n_steps,
            "batch": self.batch,
            "rate": self.rate or rate,
            "decay": self.decay,
            "seed": self.seed,
            "n_parallel": self.n_parallel,
            "cache_nbytes": self.cache_nbytes,
            "device": self.device,
            "init": self.init,
            "epochs": _EPOCHS[self.kind],
        }


def n_rounds(settings: dict[str, Any], n_embd: int) -> int:
    """How often the files are filled, so that they stay below their bound."""
    if settings["minutes"] is not None:
        return 1
    nbytes: int = settings["n_tokens"] * token_nbytes(settings, n_embd)
    bound: int = settings["cache_nbytes"]
    return max(1, math.ceil(nbytes / bound))


def token_nbytes(settings: dict[str, Any], n_embd: int) -> int:
    """Of a drawn token in the files."""
    of_features = int(4 * _PROMPT_SHARE) if settings["exit_layer"] else 0
    return n_embd * (2 + of_features)


def kind_of(settings: dict[str, Any], spec: ModelSpec, base: Base, scale: float) -> Kind:
    """The network. scale: of the embedding, to a root mean square of 1."""
    d, n_vocab, n_heads = spec.n_embd, spec.n_vocab, settings["n_heads"]
    if settings["kind"] == "mlp":
        return Mlp(
            n_embd=d,
            n_vocab=n_vocab,
            inner=settings["inner"],
            n_heads=n_heads,
            tied=settings["tied"],
            embedding_scale=scale,
        )
    if settings["kind"] == "medusa":
        return Medusa(
            n_embd=d,
            n_vocab=n_vocab,
            n_heads=n_heads,
            n_layers=settings["n_layers"],
            base_name=base.facts["name"],
        )
    if settings["kind"] != "kangaroo":
        raise PyflowError(f"kind: expected one of {', '.join(KINDS)}, found {settings['kind']!r}")
    return _adapter(spec, settings["exit_layer"])


def _adapter(spec: ModelSpec, exit_layer: int) -> Kangaroo:
    """Heads and frequencies as the first attention of the model has them."""
    block = next((b for b in spec.blocks() if isinstance(b, Attention)), None)
    if block is None or block.head_dim % 2:
        raise UnsupportedError(
            f"{spec.name}: expected attention with heads of an even size, found none; Kangaroo "
            "needs it"
        )
    theta = 10000.0
    if block.rope is not None and len(frequencies := spec.ropes[block.rope].inv_freq) > 1:
        # inv_freq[i] = theta ^ (-i / len)
        theta = float(frequencies[1] ** -len(frequencies))
    return Kangaroo(
        n_embd=spec.n_embd,
        n_vocab=spec.n_vocab,
        n_query=block.n_heads,
        n_keys=block.n_kv_heads,
        head_dim=block.head_dim,
        rope_theta=theta,
        eps=1e-6,
        n_ctx=spec.n_ctx_train,
        exit_layer=exit_layer,
    )
