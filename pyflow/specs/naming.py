"""What the tensors of a model are called in GGUF files, by which quantization knows their roles."""

from __future__ import annotations

from pyflow.quant.naming import Naming, Part

from ..spec import Attention, Moe
from .binding import Use
from .describe import Description

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
    uses = description.built.uses
    return Naming(
        {name: Part(_name(use), use.expert) for name, use in uses.items()},
        heads // key_heads,
        max((block.n_experts for block in blocks if isinstance(block, Moe)), default=0),
        {name: _TRANSPOSED for name, use in uses.items() if use.transposed},
    )


def _name(use: Use) -> str:
    roles = [role.removesuffix("_bias") for role in use.roles]
    ending = "weight" if roles[0] == use.roles[0] else "bias"
    role = roles[0]
    if role not in _MATRICES:
        name = _VECTORS.get(role) or f"{use.place.step}_{role}"
    elif len(roles) > 1:  # fused: gate and up are ffn_up
        name = "attn_qkv" if {"q", "k", "v"} & {*roles} else "ffn_up"
    else:
        name = _MATRICES[role]
    experts = "_exps" if use.experts else ""
    layer = "" if use.place.layer is None else f"blk.{use.place.layer}."
    return f"{layer}{name}{experts}.{ending}"
