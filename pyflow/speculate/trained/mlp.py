"""MLP speculators in the layout of IBM's accelerators (Wertheimer et al., 2024, paper 002).

Stage i: s = GELU(w * rms(P_i s + a e_i(token)) + b), logits = H_i s, from the head's input on.
a = sqrt((1 - v^2) m / 2) / v with v = 0.5^(0.5 / n_predict), for states of m values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pyflow.speculate.trained.base import Base
from pyflow.speculate.trained.layout import Extension, within
from pyflow.speculate.trained.tensors import Tensors

if TYPE_CHECKING:
    from pyflow._core import HeadsSpec

MOST_HEADS = 64
EPS = 1e-6


class MlpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """config.json. top_k_tokens_per_head and n_candidates are other engines': here trees grow by
    probability."""

    architectures: tuple[str, ...] = ("MLPSpeculatorPreTrainedModel",)
    model_type: str = "mlp_speculator"
    vocab_size: int
    emb_dim: int | None = None
    hidden_size: int | None = None
    inner_dim: int = 0
    n_predict: int
    top_k_tokens_per_head: tuple[int, ...] = ()
    n_candidates: int = 5
    tie_weights: bool = False
    scale_input: bool = False
    torch_dtype: str = "float32"
    pyflow: Extension = Extension()

    kind: ClassVar[str] = "mlp"

    @property
    def base(self) -> Base | None:
        return self.pyflow.base

    def native(self, tensors: Tensors, n_embd: int, n_vocab: int) -> HeadsSpec:
        where = str(tensors.checkpoint.path.parent / "config.json")
        within(where, "vocab_size", self.vocab_size, n_vocab, n_vocab)
        within(where, "emb_dim", self.emb_dim or self.hidden_size or 0, n_embd, n_embd)
        n = within(where, "n_predict", self.n_predict, 1, MOST_HEADS)
        inner = within(where, "inner_dim", self.inner_dim, 0, 1 << 20) or n_embd
        vocabulary = tensors.token_map(n_vocab)
        n_guessed = len(vocabulary) or n_vocab
        heads = []
        for i in range(n):
            at = 0 if self.tie_weights else i
            width = n_embd if i == 0 else inner
            head: dict[str, Any] = {
                "kind": "head",
                "projection": tensors.take(
                    f"proj.{min(i, 1) if self.tie_weights else i}.weight", inner, width
                ),
                "eps": EPS,
                "norm": tensors.take(f"ln.{at}.weight", inner),
                "norm_bias": tensors.take(f"ln.{at}.bias", inner),
            }
            if self.pyflow.base_embedding:
                head["token_projection"] = tensors.take(f"emb_proj.{at}.weight", inner, n_embd)
                head["token_scale"] = self.pyflow.embedding_scale
            else:
                head["tokens"] = tensors.take(f"emb.{at}.weight", n_vocab, inner)
                head["token_scale"] = token_scale(n, inner)
            if self.pyflow.base_head:
                head["output"] = tensors.take(f"head_proj.{at}.weight", n_embd, inner)
                head["gain"] = tensors.take(f"head_gain.{at}.weight", n_embd)
            else:
                head["head"] = tensors.take(f"head.{at}.weight", n_guessed, inner)
            heads.append(head)
        if self.tie_weights:
            _take_aliases(tensors, n, n_vocab, n_guessed, inner)
        return {
            "n_embd": n_embd,
            "n_inner": inner,
            "scale_input": self.scale_input,
            "vocabulary": vocabulary,
            "heads": heads,
        }


def token_scale(n_predict: int, n_inner: int) -> float:
    """What a row of a table of tokens is multiplied by, before it is added to the state."""
    v: float = 0.5 ** (0.5 / n_predict)
    return math.sqrt((1 - v * v) * n_inner / 2) / v


def _take_aliases(tensors: Tensors, n: int, n_vocab: int, n_guessed: int, inner: int) -> None:
    """Files of tied stages may hold the same tensor under the names of all stages."""
    shapes = {
        "emb.{}.weight": (n_vocab, inner),
        "head.{}.weight": (n_guessed, inner),
        "proj.{}.weight": (inner, inner),
        "ln.{}.weight": (inner,),
        "ln.{}.bias": (inner,),
    }
    for i in range(1, n):
        for form, shape in shapes.items():
            if (name := form.format(i)) in tensors:
                tensors.take(name, *shape)
