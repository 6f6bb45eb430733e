"""The same model in another basis of its residual stream.

Weights that were quantized once lie on the grid of that format, so a format with a similar grid
looks better on them than it is. A rotation takes weights off the grid and keeps the model's output:
every vector x of the stream becomes x R, R orthogonal, and every matrix that reads or writes the
stream is multiplied by R or R^T in float64. An RMS norm, x / rms(x), commutes with R once its
weights g have been moved into the matrices behind it:

    reads the stream    y = norm(x) diag(g) W^T       W' = W diag(g) R, g' = 1
    writes to it        o = y W^T + b                 W' = R^T W, b' = b R

(Ashkboos et al., 2024, "QuaRot", and "SliceGPT" before it). A tied
embedding takes no norm but the head does, so they differ afterwards: output.weight is written as a
tensor of its own. Norms with a mean or on a branch do not commute; such models are refused.

R = diag(s) (H x Q): s random signs, H the Hadamard matrix of the largest power of two that divides
n_embd, Q a random orthogonal matrix of the remaining factor. Every entry of x R depends on every
entry of x.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.quant.weights import ROTATION_SEED, Weights
from rewrite import Part, open_gguf, rewrite, values_of

from pyflow import _core, formats
from pyflow.errors import ShapeError, UnsupportedError

Values = NDArray[np.float64]
_Turn = Callable[[_core.TensorRow], Iterator[NDArray[np.floating[Any]]]]
"""Yields a tensor's new values, piece by piece."""

_READS_BEHIND = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "attn_norm"),
    **dict.fromkeys(
        (
            *("ffn_gate", "ffn_up", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"),
            *("ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp"),
        ),
        "ffn_norm",
    ),
}
"""Roles of matrices that read the stream, and the norm before them in their layer."""
_WRITES = {"attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp"}
_ELSEWHERE = {
    *("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias", "ffn_gate.bias"),
    *("ffn_up.bias", "attn_q_norm.weight", "attn_k_norm.weight"),
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
}
"""Tensors that the stream does not touch, without "blk.N."."""


def rotate(
    source: str | PathLike[str],
    target: str | PathLike[str],
    seed: int,
) -> None:
    """Writes source, a GGUF file, as `target` in F32, rotated by `orthogonal(n_embd, seed)`.

    UnsupportedError: source is not GGUF, or the model cannot be rotated.
    """
    checkpoint = open_gguf(source)
    parts = [*_Stream(checkpoint, seed).parts()]
    rewrite(checkpoint, target, parts, {ROTATION_SEED: gguf_writer.entry(seed)})


def check_rotates(model: Weights) -> None:
    """UnsupportedError: `rotate` cannot rotate this model. Checks names and shapes, reads no
    weights."""
    for _ in _Stream(cast(formats.Checkpoint, model), 0).parts():
        pass


def orthogonal(n: int, seed: int) -> Values:
    """R (n, n), as above. Equal seeds give equal matrices up to rounding."""
    rng = np.random.Generator(np.random.Philox(seed))
    power = n & -n
    hadamard = np.ones((1, 1))
    while len(hadamard) < power:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    q, r = np.linalg.qr(rng.standard_normal((n // power, n // power)))
    q *= np.sign(np.diag(r))  # makes it unique
    signs = rng.choice([-1.0, 1.0], n)
    return signs[:, np.newaxis] * np.kron(hadamard / math.sqrt(power), q)


class _Stream:
    """The new values of each tensor of a model."""

    def __init__(self, checkpoint: formats.Checkpoint, seed: int) -> None:
        self._checkpoint = checkpoint
        self._tensors = {t.name: t for t in checkpoint.tensors}
        family = checkpoint.metadata.get("general.architecture")
        if f"{family}.attention.layer_norm_rms_epsilon" not in checkpoint.metadata:
            raise self._refused("its norms are not by root mean square")
        for name in ("token_embd.weight", "output_norm.weight"):
            if name not in self._tensors:
                raise self._refused(f"it has no {name}")
        self._n_embd = self._tensors["token_embd.weight"].shape[-1]
        self._r = orthogonal(self._n_embd, seed)

    def parts(self) -> Iterator[Part]:
        """The tensors of the result."""
        for record in self._checkpoint.tensors:
            yield Part(record.name, record.shape, functools.partial(self._of(record), record))
        if "output.weight" not in self._tensors:
            embedding = self._tensors["token_embd.weight"]
            norm = self._tensors["output_norm.weight"]
            turned = functools.partial(self._reading, embedding, norm)
            yield Part("output.weight", embedding.shape, turned)

    def _of(self, record: _core.TensorRow) -> _Turn:
        found = re.fullmatch(r"(blk\.\d+\.)?(.+)\.(weight|bias)", record.name)
        layer, role, kind = ("", record.name, "") if found is None else found.groups("")
        if f"{role}.{kind}" in _ELSEWHERE or record.name == "output.bias":
            return functools.partial(values_of, self._checkpoint)
        if kind == "bias" and role in _WRITES:
            return self._reading
        if kind == "weight":
            if role in {"attn_norm", "ffn_norm", "output_norm"}:
                return lambda record: iter([np.ones(record.shape)])
            if record.name == "token_embd.weight":
                return self._reading
            if role in _WRITES:
                return self._writing
            norm = "output_norm" if record.name == "output.weight" else _READS_BEHIND.get(role)
            if norm is not None and f"{layer}{norm}.weight" in self._tensors:
                weight = self._tensors[f"{layer}{norm}.weight"]
                return functools.partial(self._reading, norm=weight)
        raise self._refused(f"tensor {record.name!r} is unknown here")

    def _reading(
        self, record: _core.TensorRow, norm: _core.TensorRow | None = None
    ) -> Iterator[Values]:
        """W diag(g) R, for rows that are vectors of the stream."""
        self._check(record, record.shape[-1])
        by = np.ones(self._n_embd)
        if norm is not None:
            by = np.concatenate([*values_of(self._checkpoint, norm)]).astype(np.float64).reshape(-1)
        turn = by[:, np.newaxis] * self._r
        for piece in values_of(self._checkpoint, record):
            yield piece.astype(np.float64) @ turn

    def _writing(self, record: _core.TensorRow) -> Iterator[Values]:
        """R^T W, for matrices (.., n_embd, columns)."""
        self._check(record, record.shape[-2])
        for matrix in values_of(self._checkpoint, record, at_once=record.shape[-2]):
            yield self._r.T @ matrix.astype(np.float64)

    def _check(self, record: _core.TensorRow, width: int) -> None:
        if width != self._n_embd:
            raise ShapeError(
                f"{self._checkpoint.path}: tensor {record.name!r}: expected a side of "
                f"{self._n_embd}, as the embedding has, found {width}"
            )

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self._checkpoint.path}: expected RMS norms before attention and feed-forward and "
            f"none behind; {why}; this model cannot be rotated, try --shuffle"
        )
