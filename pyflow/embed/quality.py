"""How well vectors tell which texts are alike, and what fewer bits cost them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyflow.embed.encoder import Vectors, normalized

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Loss:
    """Vectors of a model against those of another one, of the same texts."""

    mean_cosine: float
    least_cosine: float
    """Of all texts, between both vectors of a text."""
    recall: float
    """The share of the k nearest texts by the other model that are among this one's, on average."""
    spearman: float
    """Between the cosines of all pairs of texts by both models."""


def cosines(a: Vectors, b: Vectors) -> Numbers:
    """(n,): of row i of a and row i of b."""
    one, other = (normalized(x).astype(np.float64) for x in (a, b))
    found: Numbers = (one * other).sum(axis=1)
    return found


def pearson(a: Sequence[float] | Numbers, b: Sequence[float] | Numbers) -> float:
    """The correlation; NaN where either is constant."""
    x, y = (np.asarray(each, np.float64) - np.mean(each) for each in (a, b))
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else float("nan")


def spearman(a: Sequence[float] | Numbers, b: Sequence[float] | Numbers) -> float:
    """The correlation of ranks; equal values share their mean rank."""
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float] | Numbers) -> Numbers:
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Numbers = (ends - (counts - 1) / 2)[places]
    return found


def loss(base: Vectors, found: Vectors, k: int) -> Loss:
    """Of `found` against `base`, (n, n_embd) each, n > k >= 1."""
    near = [_alike(vectors) for vectors in (base, found)]
    best = [np.argsort(-each, axis=1, kind="stable")[:, :k] for each in near]
    shared = [np.intersect1d(a, b).size / k for a, b in zip(*best, strict=True)]
    pairs = np.triu_indices(len(base), 1)
    own = cosines(base, found)
    return Loss(
        float(own.mean()),
        float(own.min()),
        float(np.mean(shared)),
        spearman(near[0][pairs], near[1][pairs]),
    )


def _alike(vectors: Vectors) -> Numbers:
    """Cosines of all pairs; a text is not near itself."""
    unit = normalized(vectors).astype(np.float64)
    found: Numbers = unit @ unit.T
    np.fill_diagonal(found, -2.0)
    return found
