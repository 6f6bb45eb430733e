"""The same model with its channels in another order.

Weights that were quantized once lie on the grid of that format, block by block, so a format with
the same blocks loses nothing on them. Shuffling mixes the blocks and keeps the model's output. It
permutes

    the channels of the residual stream: columns of what reads it, rows of what writes to it, norms
    the inner channels of each feed-forward: rows of gate and up, columns of down
    the dimensions of each head of values: rows of v, columns of attn_output; or latents
    the channels of convolutions

Weights keep their values and their distribution. Channels that matter more than others stay so,
while `rotate` evens them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.quant.weights import SHUFFLE_SEED, Weights
from rewrite import Part, open_gguf, rewrite, values_of

from pyflow import _core, formats
from pyflow.errors import UnsupportedError

Order = NDArray[np.int64]

_READS = {
    *("token_embd", "position_embd", "output", "attn_q", "attn_k", "attn_v", "attn_qkv"),
    *("ffn_gate_inp", "ffn_gate_inp_shexp"),
}
"""Roles of matrices whose columns are channels of the stream."""
_FFN = re.compile(r"ffn_(gate|up|down)(_exps|_shexp)?")
_IN_STREAM = re.compile(r"(attn|ffn|output|token_embd|post_attention|post_ffw)_norm(_2)?")
"""Norms of the stream and of its branches."""
_LATENT_NORMS = {"attn_q_a_norm", "attn_kv_a_norm"}
_OF_LATENTS = {
    **dict.fromkeys(("attn_q_a", "attn_q_b"), "attn_q_a_norm"),
    **dict.fromkeys(("attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b"), "attn_kv_a_norm"),
}
"""Roles of matrices that make or take latents, and the norm of these."""
_ELSEWHERE = {
    *("attn_q.bias", "attn_k.bias", "attn_q_norm.weight", "attn_k_norm.weight", "output.bias"),
    *("attn_q_norm.bias", "attn_k_norm.bias", "attn_sinks.weight", "ffn_gate_inp.bias"),
    "exp_probs_b.bias",
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
}


def shuffle(
    source: str | PathLike[str],
    target: str | PathLike[str],
    seed: int,
) -> None:
    """Writes source, a GGUF file, as `target` in F32, in the random order of the seed.

    UnsupportedError: source is not GGUF, or the model has tensors that are unknown here.
    """
    checkpoint = open_gguf(source)
    orders = _Orders(checkpoint, seed)
    parts = [_part(checkpoint, record, orders) for record in checkpoint.tensors]
    rewrite(checkpoint, target, parts, {SHUFFLE_SEED: gguf_writer.entry(seed)})


def check_shuffles(model: Weights) -> None:
    """UnsupportedError: `shuffle` cannot move this model's channels. Checks names and shapes, reads
    no weights."""
    orders = _Orders(cast(formats.Checkpoint, model), 0)
    for record in model.tensors:
        orders.of(cast(_core.TensorRow, record))


def _part(checkpoint: formats.Checkpoint, record: _core.TensorRow, orders: _Orders) -> Part:
    rows, columns = orders.of(record)

    def pieces() -> Iterator[NDArray[np.float32]]:
        for piece in values_of(checkpoint, record, rows=rows):
            yield piece if columns is None else piece[:, columns]

    return Part(record.name, record.shape, pieces)


class _Orders:
    """The order of each tensor's rows and columns."""

    def __init__(self, checkpoint: formats.Checkpoint, seed: int) -> None:
        self._checkpoint = checkpoint
        self._seed = seed
        self._tensors = {t.name: t for t in checkpoint.tensors}
        if "token_embd.weight" not in self._tensors:
            raise self._refused("it has no token_embd.weight")
        self._n_embd = self._tensors["token_embd.weight"].shape[-1]
        self._stream = self._order("stream", self._n_embd)
        family = checkpoint.metadata.get("general.architecture")
        n_heads = checkpoint.metadata.get(f"{family}.attention.head_count")
        if not isinstance(n_heads, int) or n_heads < 1:
            raise self._refused("the number of heads is missing, or differs between layers")
        self._n_heads = n_heads

    def of(self, record: _core.TensorRow) -> tuple[Order | None, Order | None]:
        """Of rows, counted over all matrices of a tensor, and of columns; None: as they are. A
        vector has one row."""
        found = re.fullmatch(r"(blk\.\d+\.)?(.+)\.(weight|bias)", record.name)
        layer, role, kind = ("", record.name, "") if found is None else found.groups("")
        if f"{role}.{kind}" in _ELSEWHERE:
            return None, None
        if _IN_STREAM.fullmatch(role):
            return None, self._stream
        if role in _LATENT_NORMS:
            return None, self._latent(layer, role)
        rows, columns = self._of_matrix(layer, role)
        if rows is None and columns is None:
            raise self._refused(f"tensor {record.name!r} is unknown here")
        if kind == "bias":  # along the rows
            return None, rows
        if columns is not None and len(columns) != record.shape[-1]:
            raise self._refused(f"{record.name!r} has rows of {record.shape[-1]}")
        if rows is not None and len(record.shape) > 2:
            first = np.arange(record.shape[0])[:, np.newaxis] * len(rows)
            rows = (first + rows).reshape(-1)
        return rows, columns

    def _of_matrix(self, layer: str, role: str) -> tuple[Order | None, Order | None]:
        if role in {"attn_v", "attn_qkv"}:
            return self._values(layer, role), self._stream
        if role in _READS:
            return None, self._stream
        if role == "attn_output":
            is_latent = f"{layer}attn_kv_a_norm.weight" in self._tensors
            return self._stream, None if is_latent else self._heads(layer, self._n_heads)
        if role in _OF_LATENTS:
            return self._of_latents(layer, role)
        if role.startswith("shortconv."):
            order = self._order(f"{layer}conv", self._n_embd)
            if role.endswith("in_proj"):
                return self._repeated(order, 3), self._stream
            return (order, None) if role.endswith(".conv") else (self._stream, order)
        if ffn := _FFN.fullmatch(role):
            kind = ffn[2] or ""
            n_ff = self._tensors[f"{layer}ffn_down{kind}.weight"].shape[-1]
            inner = self._order(f"{layer}ffn{kind}", n_ff)
            if ffn[1] == "down":
                return self._stream, inner
            # Gate and up may be one matrix, one above the other.
            n_rows = self._tensors[f"{layer}{role}.weight"].shape[-2]
            return self._repeated(inner, n_rows // n_ff), self._stream
        return None, None

    def _of_latents(self, layer: str, role: str) -> tuple[Order | None, Order | None]:
        order = self._latent(layer, _OF_LATENTS[role])
        if role in {"attn_q_a", "attn_kv_a_mqa"}:  # what turns of keys stays below the latents
            n_rows = self._tensors[f"{layer}{role}.weight"].shape[-2]
            return np.concatenate([order, np.arange(len(order), n_rows)]), self._stream
        return (order, None) if role == "attn_k_b" else (None, order)

    def _latent(self, layer: str, norm: str) -> Order:
        return self._order(layer + norm, self._tensors[f"{layer}{norm}.weight"].shape[-1])

    def _values(self, layer: str, role: str) -> Order:
        """The rows of values, the last ones of queries, keys and values that are one matrix."""
        n_rows = self._tensors[f"{layer}{role}.weight"].shape[-2]
        n_queries = self._tensors[f"{layer}attn_output.weight"].shape[-1]
        n_values = n_rows if role == "attn_v" else (n_rows - n_queries) // 2
        head_dim = n_queries // self._n_heads
        order = self._heads(layer, n_values // head_dim)
        return np.concatenate([np.arange(n_rows - n_values), n_rows - n_values + order])

    def _heads(self, layer: str, n: int) -> Order:
        """The dimensions of n heads, all alike: query heads that share one of values must be."""
        n_queries = self._tensors[f"{layer}attn_output.weight"].shape[-1]
        return self._repeated(self._order(f"{layer}head", n_queries // self._n_heads), n)

    @staticmethod
    def _repeated(order: Order, n: int) -> Order:
        return (np.arange(n)[:, np.newaxis] * len(order) + order).reshape(-1)

    def _order(self, what: str, n: int) -> Order:
        """The same for the same thing."""
        rng = np.random.Generator(
            np.random.Philox(np.random.SeedSequence([self._seed, *what.encode()]))
        )
        return rng.permutation(n)

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self._checkpoint.path}: expected a model whose channels can be permuted; {why}"
        )
