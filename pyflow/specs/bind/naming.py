"""GGUF's names for the tensors of a model, by which quantization knows their roles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pyflow.errors import UnsupportedError
from pyflow.quant.naming import Naming, Part
from pyflow.specs.bind.binding import Asked, Place
from pyflow.specs.bind.describe import Description
from pyflow.specs.blocks import kinds
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.parts import Ref, TensorRef, name_of

# Tensors outside of blocks; a kind of block names its own.
_STEMS = {
    "embed": "token_embd",
    "token_types": "token_types",
    "head": "output",
    "final_norm": "output_norm",
    "embed_norm": "token_embd_norm",
}
_TRANSPOSED = "stored transposed, so that blocks would lie across their rows"


def naming(description: Description) -> Naming:
    """The naming of a model that is not in GGUF.

    Raises as `Description.spec` does. UnsupportedError also: matrices lie another way than folders
    of this family have them.
    """
    spec = description.spec
    if turned := sorted(description.built.turned):
        raise UnsupportedError(
            f"{description.checkpoint.path}: tensor {turned[0]!r:.100}: quantized as rows of "
            "outputs, which a folder of this family has as columns; write a GGUF file (name.gguf)"
        )
    blocks = [block for layer in spec.layers for block in layer]
    attentions = [block for block in blocks if isinstance(block, Attention)]
    heads = max((block.n_heads for block in attentions), default=1)
    key_heads = max((block.n_kv_heads for block in attentions), default=1)
    parts: dict[str, Part] = {}
    kept: dict[str, str] = {}
    for (place, role), asked in description.built.asked.items():
        refs = asked.bound if isinstance(asked.bound, tuple) else (asked.bound,)
        for i, ref in enumerate(refs):
            if (
                ref is None or name_of(ref) in parts
            ):  # a tensor of several roles is named after the first
                continue
            apart = len({name_of(one) for one in refs if one is not None}) > 1
            expert = i if apart and asked.want.n_experts else None
            parts[name_of(ref)] = Part(_name(place, role, asked, ref), expert)
            if isinstance(ref, TensorRef) and ref.transposed:
                kept[ref.name] = _TRANSPOSED
    return Naming(
        parts,
        heads // key_heads,
        max((block.n_experts for block in blocks if isinstance(block, Moe)), default=0),
        kept,
    )


def _name(place: Place, full_role: str, asked: Asked, ref: Ref) -> str:
    role = full_role.removesuffix("_bias")
    ending = "weight" if role == full_role else "bias"
    stems, fused = _stems()
    is_fused = isinstance(ref, TensorRef) and ref.rows
    stem = (is_fused and fused.get(role)) or stems.get(role) or f"{place.step}_{role}"
    experts = "_exps" if asked.want.n_experts and role in Moe.roles else ""
    layer = "" if place.layer is None else f"blk.{place.layer}."
    return f"{layer}{stem}{experts}.{ending}"


@cache
def _stems() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """By role, GGUF's name of a tensor, and of one that holds several roles."""
    stems, fused = dict(_STEMS), dict[str, str]()
    for kind in kinds().values():
        stems |= kind.roles
        fused |= dict.fromkeys(kind.roles, kind.fused) if kind.fused else {}
    return stems, fused
