"""Weights to the blocks of a format and back, and the error that this causes.

    blocks = quantize(weights, "q4_k")         # uint8 (rows, bytes of a row), as in a file
    values = dequantize(blocks, "q4_k")          # float32 (rows, columns)
    distortion(weights, "q4_k").snr_db

Formats are those of csrc/quant/formats.def, with names in any case. Each block gets the scales of
least squared error (csrc/encode/search), weighed by the importance of columns if it is given. The
same weights give the same bytes on every CPU and with any number of threads.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyflow import _core
from pyflow.arguments import whole
from pyflow.errors import ShapeError, UnsupportedError

FIRST_OWN_ID = 0x50460000
"""The first of our own GGUF type numbers (csrc/quant/formats.def)."""

LARGEST_IMPORTANCE = 1e30
"""The encoder's bound on a column's importance (csrc/encode/encoder.cpp)."""

# Below this many weights, starting threads takes longer than encoding.
_WORTH_THREADS = 1 << 18


@dataclass(frozen=True, slots=True)
class Format:
    """How a format stores weights."""

    name: str
    """As in formats.def and in GGUF: "Q4_K"."""
    gguf_id: int
    block: int
    """Weights per block; must divide the length of rows."""
    block_bytes: int
    encodes: bool = True
    """Whether weights can become it; others are only read."""

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block


FORMATS: dict[str, Format] = {
    f["name"]: Format(f["name"], f["gguf_id"], f["block"], f["block_bytes"], f["encodes"])
    for f in _core.weight_formats()
}
"""By name, in upper case."""

TARGETS = {name: form for name, form in FORMATS.items() if form.encodes}
"""Those that weights can become."""


def format_of(name: str) -> Format:
    """The format of that name, in any case; UnsupportedError if there is none."""
    found = FORMATS.get(str(name).upper())
    if found is None:
        raise UnsupportedError(
            f"weight format {name!r}: expected one of {', '.join(FORMATS)}, in any case"
        )
    return found


def target_of(name: str) -> Format:
    """The format of that name, in any case; UnsupportedError if weights cannot become it."""
    found = FORMATS.get(str(name).upper())
    if found is None or not found.encodes:
        read = "" if found is None else ", which is only read"
        raise UnsupportedError(
            f"weight format {name!r}{read}: expected one of {', '.join(TARGETS)}, in any case"
        )
    return found


def read_as(type: str) -> Format | None:
    """The format that weights of a tensor's type are read as: F64 as F32, the others as they are;
    None if they cannot be read."""
    return FORMATS.get("F32" if type == "F64" else type)


def quantize(
    weights: ArrayLike,
    type: str,
    importance: ArrayLike | None = None,
    *,
    n_threads: int | None = None,
) -> NDArray[np.uint8]:
    """The blocks of weights (..., columns): uint8 (..., bytes of a row).

    Weights are converted to float32 first. importance: weight of the squared error in each column,
    (columns,) numbers of any scale, at least 0. n_threads: None for one per CPU of this process.

    ShapeError: the format's block does not divide columns, or fewer than one thread.
    UnsupportedError: no such format, one that is only read, or a weight that it cannot hold; all
    hold up to +-65504.
    """
    rows = np.ascontiguousarray(weights, np.float32)
    by = None if importance is None else np.ascontiguousarray(importance, np.float32)
    if n_threads is None:
        n_threads = len(os.sched_getaffinity(0)) if rows.size >= _WORTH_THREADS else 1
    n_threads = whole("n_threads", n_threads, 1, _core.MAX_THREADS)
    pool = _core.ThreadPool(n_threads) if n_threads > 1 else None
    return _core.quantize(target_of(type).name, rows, by, pool)


def dequantize(blocks: NDArray[np.uint8], type: str) -> NDArray[np.float32]:
    """The values of blocks (..., bytes of a row): float32 (..., columns)."""
    form = format_of(type)
    blocks = np.ascontiguousarray(blocks)
    if blocks.dtype != np.uint8 or blocks.ndim == 0 or blocks.shape[-1] % form.block_bytes:
        raise ShapeError(
            f"blocks of {form.name}: expected rows of bytes, a multiple of {form.block_bytes} "
            f"each, found {blocks.dtype} {blocks.shape}"
        )
    columns = blocks.shape[-1] // form.block_bytes * form.block
    return _core.dequantize(form.name, blocks.reshape(-1), (*blocks.shape[:-1], columns))


@dataclass(frozen=True, slots=True)
class Distortion:
    """The error of values against weights x: d is the difference, w the importance, normalized to
    a mean of 1."""

    mse: float
    """Mean of w d^2."""
    relative: float
    """Sum of w d^2 / sum of w x^2; 0 if there is no difference."""
    mean_error: float
    """Mean of |d|."""
    max_error: float
    """Largest |d|."""

    @property
    def snr_db(self) -> float:
        """Signal to noise ratio in decibels; infinite if there is no difference."""
        return -10 * math.log10(self.relative) if self.relative else math.inf


def distortion(weights: ArrayLike, type: str, importance: ArrayLike | None = None) -> Distortion:
    """The error of quantizing weights (..., columns) to a format."""
    return difference(weights, dequantize(quantize(weights, type, importance), type), importance)


def difference(
    weights: ArrayLike, values: ArrayLike, importance: ArrayLike | None = None
) -> Distortion:
    """The error of values against weights of the same shape (..., columns), by any scheme.

    ShapeError: shapes differ or are empty. UnsupportedError: weights or values that are NaN or
    infinite, or importance outside 0 to 1e30.
    """
    x = np.asarray(weights, np.float32)
    y = np.asarray(values, np.float32)
    if x.size == 0:
        raise ShapeError(f"distortion: expected one weight or more, found shape {x.shape}")
    if x.shape != y.shape:
        raise ShapeError(f"distortion: expected two equal shapes, found {x.shape} and {y.shape}")
    for what, of in (("weights", x), ("values", y)):
        if not np.isfinite(of).all():
            raise UnsupportedError(f"distortion: expected finite {what}, found NaN or infinity")
    by = np.ones(x.shape[-1:]) if importance is None else np.asarray(importance, np.float64)
    if by.shape != x.shape[-1:]:
        raise ShapeError(f"importance: expected shape {x.shape[-1:]}, found {by.shape}")
    if not ((by >= 0) & (by <= LARGEST_IMPORTANCE)).all():  # catches NaN too
        raise UnsupportedError(
            f"importance: expected numbers from 0 to {LARGEST_IMPORTANCE:g}, found "
            f"{by.min():g} to {by.max():g}"
        )
    by = by / mean if (mean := by.mean()) > 0 else np.ones_like(by)
    d = x.astype(np.float64) - y
    mse = float(np.mean(by * np.square(d)))
    power = float(np.mean(by * np.square(x, dtype=np.float64)))
    return Distortion(
        mse=mse,
        relative=0.0 if mse == 0.0 else mse / power if power > 0 else math.inf,
        mean_error=float(np.abs(d).mean()),
        max_error=float(np.abs(d).max()),
    )
