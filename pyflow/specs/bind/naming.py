"""What the tensors of a model are called in GGUF files, by which quantization knows their roles."""

from __future__ import annotations

from pyflow.quant.naming import Naming, Part
from pyflow.specs.bind.binding import Asked, Place
from pyflow.specs.bind.describe import Description
from pyflow.specs.model_spec import Attention, Moe, Ref, Source, name_of

# The roles of matrices, as all families call them; the tests hold this against their files.
_MATRICES = {
    "embed": "token_embd",
    "positions": "position_embd",
    "token_types": "token_types",
    "head": "output",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "relative": "attn_rel_b",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_gate_inp",
    "shared_router": "ffn_gate_inp_shexp",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
}
_VECTORS = {"final_norm": "output_norm", "embed_norm": "token_embd_norm"}
_TRANSPOSED = "stored the other way round, so that blocks would lie across their rows"


def naming(description: Description) -> Naming:
    """The naming of a model that is not in GGUF.

    Raises like `Description.spec` for a model that cannot run.
    """
    spec = description.spec
    blocks = [block for layer in spec.layers for block in layer]
    attentions = [block for block in blocks if isinstance(block, Attention)]
    heads = max((block.n_heads for block in attentions), default=1)
    key_heads = max((block.n_kv_heads for block in attentions), default=1)
    parts: dict[str, Part] = {}
    kept: dict[str, str] = {}
    for (place, role), asked in description.built.asked.items():
        refs = asked.bound if isinstance(asked.bound, tuple) else (asked.bound,)
        for i, ref in enumerate(refs):
            if ref is None or name_of(ref) in parts:  # of several roles the first
                continue
            expert = i if isinstance(asked.bound, tuple) and asked.want.n_experts else None
            parts[name_of(ref)] = Part(_name(place, role, asked, ref), expert)
            if isinstance(ref, Source) and ref.transposed:
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
    if role not in _MATRICES:
        name = _VECTORS.get(role) or f"{place.step}_{role}"
    elif isinstance(ref, Source) and ref.rows:  # fused: gate and up are ffn_up
        name = "attn_qkv" if role in {"q", "k", "v"} else "ffn_up"
    else:
        name = _MATRICES[role]
    experts = "_exps" if asked.want.n_experts else ""
    layer = "" if place.layer is None else f"blk.{place.layer}."
    return f"{layer}{name}{experts}.{ending}"
