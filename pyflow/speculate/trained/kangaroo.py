"""Kangaroo's adapters (Liu et al., 2024, paper 003) in their own layout: a Llama of one layer.

y = f + attention(w * rms(f)) of what the first layers of the model leave, and rows of its head over
v * rms(y).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pyflow.errors import FormatError
from pyflow.speculate.trained.base import Base
from pyflow.speculate.trained.layout import Extension, within
from pyflow.speculate.trained.tensors import Tensors

if TYPE_CHECKING:
    from pyflow._core import HeadsSpec

# Buffers that transformers once saved.
IGNORED = r"rotary_emb\.inv_freq$"
_MOST_POSITIONS = 1 << 30


class KangarooConfig(msgspec.Struct, frozen=True, kw_only=True):
    """config.json. Public ones do not name the layer that the adapter reads."""

    architectures: tuple[str, ...] = ("LlamaModel",)
    model_type: str = "llama"
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    pyflow: Extension = Extension()

    kind: ClassVar[str] = "kangaroo"

    @property
    def base(self) -> Base | None:
        return self.pyflow.base

    def native(self, tensors: Tensors, n_embd: int, n_vocab: int) -> HeadsSpec:
        """The last norm, and rows of the model's head."""
        where = _where(tensors)
        within(where, "hidden_size", self.hidden_size, n_embd, n_embd)
        within(where, "vocab_size", self.vocab_size, n_vocab, n_vocab)
        norm = tensors.take("norm.weight", n_embd)
        return {
            "n_embd": n_embd,
            "n_inner": n_embd,
            "scale_input": False,
            "vocabulary": tensors.token_map(n_vocab),
            "heads": [{"kind": "head", "norm": norm, "eps": self.rms_norm_eps}],
        }

    def adapter(self, tensors: Tensors) -> dict[str, object]:
        """The attention as a stage of one layer; takes its tensors. FormatError, ShapeError."""
        where, d = _where(tensors), self.hidden_size
        within(where, "num_hidden_layers", self.num_hidden_layers, 1, 1)
        n_heads = within(where, "num_attention_heads", self.num_attention_heads, 1, d)
        n_kv = within(where, "num_key_value_heads", self.num_key_value_heads or n_heads, 1, n_heads)
        dim = within(where, "head_dim", self.head_dim or d // n_heads, 2, 1 << 14)
        if self.rope_scaling or self.attention_bias or n_heads % n_kv or dim % 2:
            raise FormatError(
                f"{where}: expected an even head_dim, query heads in equal groups, and neither "
                "rope_scaling nor attention_bias"
            )
        part = "layers.0.self_attn.{}_proj.weight".format
        attention = {
            "kind": "attention",
            "input": "h",
            "output": "h",
            "q": tensors.take(part("q"), n_heads * dim, d),
            "k": tensors.take(part("k"), n_kv * dim, d),
            "v": tensors.take(part("v"), n_kv * dim, d),
            "o": tensors.take(part("o"), d, n_heads * dim),
            "n_heads": n_heads,
            "n_kv_heads": n_kv,
            "head_dim": dim,
            "scale": dim**-0.5,
            "rope": 0,
            "window": 0,
            "softcap": 0.0,
            "norm_eps": 0.0,
            "norm_type": "rms",
            "norm_span": "head",
        }
        norm = {
            "kind": "norm",
            "input": "x",
            "output": "h",
            "weight": tensors.take("layers.0.input_layernorm.weight", d),
            "eps": self.rms_norm_eps,
            "type": "rms",
        }
        frequencies = [float(self.rope_theta ** (-2 * i / dim)) for i in range(dim // 2)]
        return {
            "n_embd": d,
            "n_vocab": self.vocab_size,
            "ropes": [{"inv_freq": frequencies, "magnitude": 1.0, "interleaved": False}],
            "embedding": None,
            "layers": [
                [norm, attention, {"kind": "add", "input": "h", "output": "x", "scale": 1.0}]
            ],
            "head": None,
        }


def _where(tensors: Tensors) -> str:
    return str(tensors.checkpoint.path.parent / "config.json")
