"""How many bytes of weights one decoded token needs: the bound that memory sets on decoding.

A token of a dense model needs every weight once, but of the embedding table only one row (unless
the head is tied to it: then the head reads all of it). The cache's own bytes, a few percent more at
a few hundred tokens, are left out, so that the bound is never too low.
"""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader


def bytes_per_token(path: Path) -> int:
    """Bytes of weights that one decoded token reads."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    total = sum(sizes.values())
    tied = "output.weight" not in sizes
    return total if tied else total - sizes["token_embd.weight"]
