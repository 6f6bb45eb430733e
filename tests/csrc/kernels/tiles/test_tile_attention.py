"""Attention of prompts by tiles: close, and a function of what a row sees alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ..attention_cache import (
    BEST,
    KINDS,
    Cache,
    View,
    attend,
    causal,
    queries,
    reference,
    same_bits,
    view,
)
from ..products import TILED

by_tiles = partial(attend, TILED[-1], prefill=True)
pytestmark = pytest.mark.skipif(not TILED, reason="tiles are emulated on x86-64 alone")

SHAPES = [  # heads, key/value heads, head_dim, value_dim
    (6, 2, 64, 64),
    (12, 1, 128, 128),
    (5, 5, 32, 32),
    (3, 1, 80, 48),  # no multiple of 32
    (2, 1, 16, 112),
    (1, 1, 256, 256),
    (2, 1, 512, 512),
    (2, 1, 528, 64),  # too large: the base table's
]


def filled(
    kind: str, n: int, n_kv_heads: int = 1, head_dim: int = 32, value_dim: int = 0, at: int = 40
) -> tuple[Cache, View]:
    cache = Cache(kind, n_kv_heads, head_dim, (n + 31) // 16 * 16, value_dim)
    slots, positions = view(np.arange(n) + 5, np.arange(n) + at)
    cache.fill(slots, positions)
    return cache, (slots, positions)


@pytest.mark.parametrize("softcap", [0.0, 2.5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_tables_with_tiles_agree_and_are_right(
    kind: str, shape: tuple[int, int, int, int], softcap: float
) -> None:
    n_heads, n_kv_heads, head_dim, value_dim = shape
    cache, cells = filled(kind, 110, n_kv_heads, head_dim, value_dim)
    q = queries(19, n_heads, head_dim)
    rows = causal(*cells, 19)
    found = [attend(isa, cache, q, rows, softcap=softcap, prefill=True) for isa in TILED]
    for other in found:
        assert same_bits(other, found[0])
    np.testing.assert_allclose(found[0], reference(cache, q, rows, softcap), rtol=0, atol=6e-5)
    plain = attend(BEST, cache, q, rows, softcap=softcap)
    assert same_bits(found[0], plain) == (head_dim > 512)


@pytest.mark.parametrize("window", [0, 1, 20, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_equals_the_row_in_any_batch(kind: str, window: int) -> None:
    n = 170
    cache, cells = filled(kind, n)
    q = queries(n, 3, 32)
    rows = causal(*cells, n, window)
    whole = by_tiles(cache, q, rows)
    np.testing.assert_allclose(whole, reference(cache, q, rows), rtol=0, atol=6e-5)
    rng = np.random.default_rng(window)
    some = tuple(int(c) for c in np.unique(rng.integers(1, n, 9)))
    for cuts in [some, tuple(range(32, n, 32)), tuple(range(1, n))]:
        assert same_bits(by_tiles(cache, q, rows, cuts=cuts), whole)
    # The same views as arrays of their own, in another order.
    order = rng.permutation(n)[:40]
    copies = [(rows[r][0].copy(), rows[r][1].copy()) for r in order]
    assert same_bits(by_tiles(cache, q[order], copies), whole[order])
    # Rows of one list in another order.
    assert same_bits(by_tiles(cache, q[order], [rows[r] for r in order]), whole[order])


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_one_to_many_heads_are_alike(kind: str) -> None:
    cache, cells = filled(kind, 100)
    rows = causal(*cells, 7)
    q = queries(7, 545, 32)  # more than are computed together
    whole = by_tiles(cache, q, rows)
    for n_heads in (1, 2, 7, 33, 130):
        part = by_tiles(cache, np.ascontiguousarray(q[:, : n_heads * 32]), rows)
        assert same_bits(whole[:, : n_heads * 32], part)


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_cells_lie_does_not_matter(kind: str) -> None:
    n, n_rows = 200, 5
    rng = np.random.default_rng(2)
    positions = np.arange(n) + 100
    q = queries(n_rows, 6, 64)
    results = []
    for slots in [
        np.arange(n) + 7,
        positions - 96,
        np.arange(n)[::-1] + 3,
        (rng.permutation(n // 10)[:, None] * 10 + np.arange(10)).reshape(-1),
        rng.permutation(400)[:n],
    ]:
        cache = Cache(kind, 2, 64, 400)
        s, p = view(slots, positions)
        cache.fill(s, p)
        results.append(by_tiles(cache, q, causal(s, p, n_rows)))
        assert same_bits(by_tiles(cache, q[-1:], causal(s, p, 1))[0], results[0][-1])
    for result in results:
        assert same_bits(result, results[0])


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_slopes_and_sinks_are_seen_alike(kind: str) -> None:
    cache, (slots, positions) = filled(kind, 300, 2, at=250)
    rng = np.random.default_rng(4)
    keep = rng.random(300) < 0.8
    keep[70:140] = False
    keep[-11:] = True
    rows = causal(slots, positions, 11) + causal(slots[keep], positions[keep], 11, 100)
    rows[3] = view([], [])
    q = queries(len(rows), 6, 32)
    slopes = rng.uniform(0, 0.3, 6).astype(np.float32)
    whole = by_tiles(cache, q, rows, slopes=slopes)
    assert not whole[3].any()
    np.testing.assert_allclose(whole, reference(cache, q, rows, slopes=slopes), rtol=0, atol=6e-5)
    assert same_bits(by_tiles(cache, q, rows, slopes=slopes, cuts=tuple(range(1, 22))), whole)
    sinks = rng.uniform(-2, 4, 6).astype(np.float32)
    whole = by_tiles(cache, q, rows, sinks=sinks)
    np.testing.assert_allclose(whole, reference(cache, q, rows, sinks=sinks), rtol=0, atol=6e-5)
    assert same_bits(by_tiles(cache, q, rows, sinks=sinks, cuts=tuple(range(1, 22))), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_cells_do_not_leak_whatever_they_hold(kind: str) -> None:
    n = 80
    cache, cells = filled(kind, n)
    q = queries(n, 3, 32)
    full, windowed = causal(*cells, n), causal(*cells, n, 9)
    clean = [by_tiles(cache, q, rows) for rows in (full, windowed)]
    at = np.arange(n)
    normal = cache.data(40 + 45)
    for k_bad, v_bad in [(np.nan, np.nan), (None, np.nan), (None, np.inf), (-np.inf, None)]:
        k, v = (x.copy() for x in normal)
        if k_bad is not None:
            k[3] = k_bad
        if v_bad is not None:
            v[7] = v_bad
        cache.cells.store_kv(BEST, 45 + 5, k, v)
        for rows, before, sees in zip(
            (full, windowed), clean, (at >= 45, (at >= 45) & (at < 45 + 9)), strict=True
        ):
            found = by_tiles(cache, q, rows)
            assert same_bits(found[~sees], before[~sees])
            heads = found[sees].reshape(-1, 32)
            block = 32 if kind == "q8_0" else 1  # that an odd value spoils
            bad = heads if k_bad is not None else heads[:, 7 // block * block :][:, :block]
            assert not np.isfinite(bad).any(), "what a row sees is not hidden"
            assert k_bad is not None or block > 1 or np.isfinite(np.delete(heads, 7, 1)).all()
        singly = by_tiles(cache, q, full, cuts=tuple(range(1, n)))
        assert same_bits(np.nan_to_num(singly), np.nan_to_num(by_tiles(cache, q, full)))


def test_a_query_that_is_not_finite_stays_in_its_row() -> None:
    cache, cells = filled("f16", 70)
    rows = causal(*cells, 20)
    q = queries(20, 1, 32)
    clean = by_tiles(cache, q, rows)
    payloads = (0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000)
    for i, bits in enumerate(payloads):
        q.view(np.uint32)[3 * i, 5 * i] = bits
    found = by_tiles(cache, q, rows)
    odd = np.arange(20) % 3 == 0
    odd[18:] = False
    assert np.isnan(found[odd]).all()
    assert same_bits(found[~odd], clean[~odd])


def exact(q: Any, k: Any, v: Any, n_rows: int) -> NDArray[np.float64]:
    n, dim = k.shape
    out = []
    for r in range(n_rows):
        seen = n - n_rows + r + 1
        s = q[r].reshape(-1, dim).astype(np.float64) @ k[:seen].T.astype(np.float64) * dim**-0.5
        p = np.exp(s - s.max(axis=1, keepdims=True))
        out.append((p / p.sum(axis=1, keepdims=True) @ v[:seen].astype(np.float64)).reshape(-1))
    return np.array(out)


@pytest.mark.parametrize("inputs", ["random", "spiky", "channels", "sharp"])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_the_cells(kind: str, inputs: str) -> None:
    """Against the keys and values before they were rounded into cells."""
    n, n_rows, dim = 300, 40, 64
    rng = np.random.default_rng(7)
    k, v, q = (rng.normal(0, 1, shape).astype(np.float32) for shape in [(n, dim)] * 2 + [(40, 192)])
    if inputs == "spiky":
        k, v, q = (x * np.where(rng.random(x.shape) < 0.01, 30, 1) for x in (k, v, q))
    if inputs == "channels":
        k[:, rng.choice(dim, 3)] *= 30
        v *= np.exp(rng.normal(0, 1, dim))
    if inputs == "sharp":
        q *= 30
    k, v, q = (x.astype(np.float32) for x in (k, v, q))
    cache = Cache(kind, 1, dim, 304)
    slots, positions = view(np.arange(n), np.arange(n))
    for i in range(n):
        cache.cells.store_kv(BEST, i, k[i], v[i])
    rows = causal(slots, positions, n_rows)
    expected = exact(q, k, v, n_rows)
    tiles, today = (
        np.sqrt(((found - expected) ** 2).mean())
        for found in (by_tiles(cache, q, rows), attend(BEST, cache, q, rows))
    )
    assert tiles < 1.1 * today
    stored = reference(cache, q, rows)
    assert np.sqrt(((by_tiles(cache, q, rows) - stored) ** 2).mean()) < 0.1 * today
