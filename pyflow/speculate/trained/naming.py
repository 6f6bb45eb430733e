"""What `pyflow quantize` needs to know of a speculator's folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyflow.errors import PyflowError
from pyflow.formats.side_files import read_text
from pyflow.quant.naming import Naming, Part

if TYPE_CHECKING:
    from pyflow.formats import Checkpoint

_MAX_CONFIG = 1 << 20
# Names of tensors and what they are called by layer and role, the first that matches.
_NAMES = (
    (r"(?:speculator\.)?([a-z_]+)\.(\d+)\.(weight|bias)", r"blk.\2.\1.\3"),
    (r"(?:medusa_heads?\.)?(?:blocks\.)?(\d+)\.(?:layers\.)?(\d+)\.(?:linear\.)?weight",
     r"blk.\1.linear_\2.weight"),
    (r"(?:model\.)?layers\.0\.self_attn\.([qkv])_proj\.weight", r"blk.0.attn_\1.weight"),
    (r"(?:model\.)?layers\.0\.self_attn\.o_proj\.weight", "blk.0.attn_output.weight"),
)  # fmt: skip


def is_speculator(checkpoint: Checkpoint) -> bool:
    """Whether the files beside the weights, or the weights, are those of a speculator."""
    path = Path(checkpoint.path).parent / "config.json"
    try:
        config = json.loads(read_text(path, max_nbytes=_MAX_CONFIG))
    except (OSError, ValueError, PyflowError):
        return False
    if not isinstance(config, dict):
        return False
    has_heads = config.get("model_type") == "mlp_speculator" or "medusa_num_heads" in config
    names = {re.sub(r"^model\.", "", tensor.name) for tensor in checkpoint.tensors}
    is_adapter = (
        "layers.0.self_attn.q_proj.weight" in names
        and "embed_tokens.weight" not in names
        and not any(".mlp." in name for name in names)
    )
    return has_heads or is_adapter


def naming_of(checkpoint: Checkpoint) -> Naming:
    """Every tensor by its layer and role, but for lists of tokens."""
    parts = {}
    for tensor in checkpoint.tensors:
        if not tensor.name.endswith("token_map"):
            found = (re.fullmatch(pattern, tensor.name) for pattern, _ in _NAMES)
            names = (m.expand(to) for m, (_, to) in zip(found, _NAMES, strict=True) if m)
            parts[tensor.name] = Part(next(names, tensor.name))
    return Naming(parts, 1, 0)
