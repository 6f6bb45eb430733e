"""Medusa's heads (Cai et al., 2024, arXiv:2401.10774), in its own layout and in vLLM's.

Head h guesses the token h + 1 places after the root: x = x + SiLU(W x + b) for each layer, then its
own matrix, or the model's head. It sees no token after the hidden row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pyflow.errors import ShapeError
from pyflow.speculate.trained.base import Base
from pyflow.speculate.trained.layout import Extension, within
from pyflow.speculate.trained.tensors import Tensors

if TYPE_CHECKING:
    from pyflow._core import HeadsSpec

MOST_HEADS = 64
# Prefixes of full models and of vLLM's files.
PREFIXES = ("medusa_head.", "medusa_heads.")


class MedusaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """config.json. Published ones name other numbers of heads than their files hold, so heads are
    counted in the file."""

    architectures: tuple[str, ...] = ("MedusaModel",)
    model_type: str = "medusa"
    medusa_num_heads: int | None = None
    medusa_num_layers: int | None = None
    base_model_name_or_path: str | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    original_lm_head: bool = False
    truncated_vocab_size: int | None = None
    pyflow: Extension = Extension()

    kind: ClassVar[str] = "medusa"

    @property
    def base(self) -> Base | None:
        return self.pyflow.base

    def native(self, tensors: Tensors, n_embd: int, n_vocab: int) -> HeadsSpec:
        where = str(tensors.checkpoint.path.parent / "config.json")
        if self.hidden_size is not None:
            within(where, "hidden_size", self.hidden_size, n_embd, n_embd)
        if self.vocab_size is not None:
            within(where, "vocab_size", self.vocab_size, n_vocab, n_vocab)
        vocabulary = tensors.token_map(n_vocab)
        n_guessed = len(vocabulary) or n_vocab
        layer, head = _names(tensors)
        n_heads = _count(tensors, re.escape(layer).replace(r"\{h\}", r"(\d+)"), {"j": "0"})
        n_heads = within(str(tensors.checkpoint.path), "heads", n_heads, 1, MOST_HEADS)
        heads = []
        for h in range(n_heads):
            n_layers = 0
            while layer.format(h=h, j=n_layers) + "weight" in tensors:
                n_layers += 1
            parts = [layer.format(h=h, j=j) for j in range(n_layers)]
            one: dict[str, Any] = {
                "kind": "head",
                "residuals": [tensors.take(f"{p}weight", n_embd, n_embd) for p in parts],
                "residual_biases": [tensors.take(f"{p}bias", n_embd) for p in parts],
            }
            own = head.format(h=h, n=n_layers)
            if own in tensors:
                one["head"] = tensors.take(own, n_guessed, n_embd)
            elif not self.original_lm_head:
                raise ShapeError(
                    f"{tensors.checkpoint.path}: tensor {own} is missing: heads without a matrix "
                    'of their own need "original_lm_head": true in config.json'
                )
            heads.append(one)
        return {
            "n_embd": n_embd,
            "n_inner": n_embd,
            "scale_input": False,
            "vocabulary": vocabulary,
            "heads": heads,
        }


def _names(tensors: Tensors) -> tuple[str, str]:
    """How residual layers and matrices are named: by Medusa, or by vLLM."""
    if any(name.startswith("blocks.") for name in tensors.names()):
        return "blocks.{h}.layers.{j}.", "lm_heads.{h}.weight"
    return "{h}.{j}.linear.", "{h}.{n}.weight"


def _count(tensors: Tensors, form: str, values: dict[str, str]) -> int:
    pattern = re.compile(form.replace(r"\{j\}", values["j"]) + "weight")
    return len({m[1] for name in tensors.names() if (m := pattern.fullmatch(name))})
