"""A cache of keys and values with random cells, attention over it, and a reference in double."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyflow_testing as kernels

from pyflow import _core

TABLES: list[str] = _core.cpu_info()["tables"]
BEST = TABLES[-1]
KINDS = ["f16", "q8_0"]
View = tuple[np.ndarray, np.ndarray]  # slots, positions


def view(slots: Any, positions: Any) -> View:
    return np.array(slots, np.int32), np.array(positions, np.int32)


@dataclass
class Cache:
    """Random keys and values by position, in chosen slots among cells full of nan patterns.

    head_dim: of queries and keys. value_dim: 0 for as many. Cells hold zeros after them. in_keys:
    values are the first part of keys.
    """

    kind: str
    n_kv_heads: int
    head_dim: int
    n_slots: int
    value_dim: int = 0
    in_keys: bool = False
    k: np.ndarray = field(init=False)
    v: np.ndarray = field(init=False)
    cells: Any = field(init=False)

    def __post_init__(self) -> None:
        self.value_dim = self.value_dim or self.head_dim
        dims = self.in_cells(self.head_dim), self.in_cells(self.value_dim)
        wide = [dim * 2 if self.kind == "f16" else dim // 32 * 34 for dim in dims]
        n = self.n_slots * self.n_kv_heads
        self.k, self.v = (np.full(n * w, 0xFF, np.uint8) for w in wide)
        if self.in_keys:
            self.v = self.v[:0]
        self.cells = kernels.Cells(self.k, self.v, self.kind, self.n_kv_heads, *dims)

    def in_cells(self, dim: int) -> int:
        unit = 16 if self.kind == "f16" else 32
        return (dim + unit - 1) // unit * unit

    def filled_up(self, heads: np.ndarray, dim: int) -> np.ndarray:
        """Rows of heads of `dim`, each filled up with zeros to its size in cells."""
        wide = np.zeros((*heads.shape[:-1], heads.shape[-1] // dim, self.in_cells(dim)), np.float32)
        wide[..., :dim] = heads.reshape(*wide.shape[:-1], dim)
        return wide.reshape(*heads.shape[:-1], -1)

    def data(self, position: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as cells have them."""
        rng = np.random.default_rng([seed, position])
        k, v = (
            rng.normal(0, 1, self.n_kv_heads * dim).astype(np.float32)
            for dim in (self.head_dim, self.value_dim)
        )
        return self.filled_up(k, self.head_dim), self.filled_up(v, self.value_dim)

    def fill(self, slots: Any, positions: Any, seed: int = 0) -> None:
        for slot, position in zip(slots, positions, strict=True):
            self.cells.store_kv(BEST, int(slot), *self.data(int(position), seed))

    def values(self) -> np.ndarray:
        """Stored values as float64 [slot, kv_head, dim]."""
        if self.in_keys:
            return self.keys(np.arange(self.n_slots))[..., : self.value_dim]
        if self.kind == "f16":
            v = self.v.view(np.float16).astype(np.float64)
        else:
            b = self.v.view(np.dtype([("d", np.float16), ("q", np.int8, 32)]))
            v = b["d"].astype(np.float64)[:, None] * b["q"]
        return v.reshape(self.n_slots, self.n_kv_heads, -1)[..., : self.value_dim]

    def keys(self, slots: np.ndarray) -> np.ndarray:
        """Stored keys as float64 [cell, kv_head, dim]."""
        keys = np.array([self.cells.load_k(BEST, int(s)) for s in slots], np.float64)
        return keys[..., : self.head_dim]


def attend(
    table: str,
    cache: Cache,
    q: np.ndarray,
    rows: list[View],
    *,
    softcap: float = 0.0,
    cuts: tuple[int, ...] = (),
    prefill: bool = False,
    **of_heads: np.ndarray | None,
) -> np.ndarray:
    """All rows and heads, the rows cut into several calls; outputs start as nan between guards.

    prefill: by the table's attention of prompts. of_heads: slopes and sinks, a number each.
    """
    n_heads, dim = q.shape[1] // cache.head_dim, cache.in_cells(cache.value_dim)
    out = np.full((len(rows), n_heads * dim + 3), np.nan, np.float32)
    scale = cache.head_dim**-0.5
    q = cache.filled_up(q, cache.head_dim)
    attention = kernels.Attention(
        table, cache.cells, q, rows, n_heads, scale, softcap, of_heads.get("slopes")
    )
    if (sinks := of_heads.get("sinks")) is not None:
        attention.add_sinks(sinks)
    edges = [0, *cuts, len(rows)]
    for begin, end in itertools.pairwise(edges):
        for kv_head in range(cache.n_kv_heads):
            attention.attend(out, begin, end, kv_head, prefill)
    assert np.isnan(out[:, n_heads * dim :]).all()
    return cut(cache, out[:, : n_heads * dim])


def cut(cache: Cache, out: np.ndarray) -> np.ndarray:
    """Outputs without what cells add to values."""
    heads = out.reshape(len(out), -1, cache.in_cells(cache.value_dim))
    return np.ascontiguousarray(heads[..., : cache.value_dim]).reshape(len(out), -1)


def reference(
    cache: Cache,
    q: np.ndarray,
    rows: list[View],
    softcap: float = 0.0,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    n_heads = q.shape[1] // cache.head_dim
    group = n_heads // cache.n_kv_heads
    out = np.zeros((len(rows), n_heads, cache.value_dim))
    all_values = cache.values()
    for r, (slots, positions) in enumerate(rows):
        if slots.size == 0:
            continue
        keys, values = cache.keys(slots), all_values[slots]
        for h in range(n_heads):
            query = q[r].reshape(n_heads, -1)[h].astype(np.float64)
            s = keys[:, h // group] @ query * cache.head_dim**-0.5
            if softcap:
                s = softcap * np.tanh(s / softcap)
            ahead = positions - positions[-1]
            if slopes is not None and slopes.ndim == 2:  # biases by distance
                reach = slopes.shape[1] // 2
                s = s + slopes[h, np.clip(ahead, -reach, reach) + reach]
            elif slopes is not None:
                s = s + float(slopes[h]) * ahead
            unseen = [] if sinks is None else [float(sinks[h])]
            top = max([s.max(), *unseen])
            p = np.exp(s - top)
            total = p.sum() + sum(np.exp(x - top) for x in unseen)
            out[r, h] = p @ values[:, h // group] / total
    return out.reshape(len(rows), -1)


def queries(n_rows: int, n_heads: int, head_dim: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (n_rows, n_heads * head_dim)).astype(np.float32)


def causal(slots: np.ndarray, positions: np.ndarray, n_rows: int, window: int = 0) -> list[View]:
    """The last n_rows cells as rows, all pointing into one array."""
    n = len(slots)
    first = [max(0, n - n_rows + r + 1 - window) if window else 0 for r in range(n_rows)]
    return [
        (slots[f : n - n_rows + r + 1], positions[f : n - n_rows + r + 1])
        for r, f in enumerate(first)
    ]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def by_spans(
    table: str,
    cache: Cache,
    q: np.ndarray,
    rows: list[View],
    n_spans: int,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    n_heads = q.shape[1] // cache.head_dim
    scale = cache.head_dim**-0.5
    q = cache.filled_up(q, cache.head_dim)
    attention = kernels.Attention(table, cache.cells, q, rows, n_heads, scale, 0.0, slopes)
    if sinks is not None:
        attention.add_sinks(sinks)
    out = np.full((len(q), n_heads * cache.in_cells(cache.value_dim)), np.nan, np.float32)
    for r in range(len(rows)):
        for kv_head in range(cache.n_kv_heads):
            partials = [attention.span(r, kv_head, s) for s in range(n_spans)]
            attention.merge(out, r, kv_head, np.concatenate(partials))
    return cut(cache, out)
