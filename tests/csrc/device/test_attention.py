"""Cells and attention on a device have the bytes and bits of the scalar table."""

from __future__ import annotations

import numpy as np
import pyflow_testing as kernels
import pytest

from ..kernels.attention_cache import KINDS, Cache, View, attend, causal, queries, view
from .rows import patterns, same_bits


def on_device(cache: Cache) -> kernels.DeviceCells:
    dims = cache.in_cells(cache.head_dim), cache.in_cells(cache.value_dim)
    return kernels.DeviceCells(cache.k, cache.v, cache.kind, cache.n_kv_heads, *dims)


def agrees(
    ops: kernels.DeviceOps,
    cache: Cache,
    n_heads: int,
    rows: list[View],
    *,
    softcap: float = 0.0,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    scratch_rows: int = 3,
) -> bool:
    """Whether all rows of random queries get the outputs of the scalar table."""
    q = queries(len(rows), n_heads, cache.head_dim)
    expected = attend("scalar", cache, q, rows, softcap=softcap, slopes=slopes, sinks=sinks)
    padded, scale = cache.filled_up(q, cache.head_dim), cache.head_dim**-0.5
    found = ops.attend(
        on_device(cache), padded, rows, n_heads, (scale, softcap), slopes, scratch_rows, sinks
    )
    heads = found.reshape(len(rows), n_heads, -1)[..., : cache.value_dim]
    return same_bits(np.ascontiguousarray(heads).reshape(len(rows), -1), expected)


def filled(kind: str, n: int, *, heads: int = 1, dim: int = 32, value_dim: int = 0) -> Cache:
    """Positions 0 to n in slots that follow one another but for a jump in the middle."""
    cache = Cache(kind, heads, dim, (n + 63) // 16 * 16 + 16, value_dim)
    cache.fill(slots_of(n), range(n))
    return cache


def slots_of(n: int) -> np.ndarray:
    slots = np.arange(n, dtype=np.int32)
    slots[n // 2 :] += 21
    return slots


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "value_dim"),
    [(2, 1, 16, 0), (1, 3, 64, 0), (2, 2, 80, 48), (1, 8, 128, 0), (1, 1, 256, 0), (1, 2, 40, 0)],
)
def test_groups_of_heads_and_sizes(
    ops: kernels.DeviceOps, kind: str, kv_heads: int, group: int, dim: int, value_dim: int
) -> None:
    cache = filled(kind, 150, heads=kv_heads, dim=dim, value_dim=value_dim)
    rows = causal(slots_of(150), np.arange(150, dtype=np.int32), 4)
    assert agrees(ops, cache, kv_heads * group, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_windows_and_splits(ops: kernels.DeviceOps, kind: str) -> None:
    n = 1501
    cache, positions = filled(kind, n), np.arange(n, dtype=np.int32)
    for length in (1, 16, 63, 64, 65, 511, 512, 513, n):
        assert agrees(ops, cache, 2, causal(slots_of(n)[:length], positions[:length], 1)), length
    for window in (1, 50, 700):
        rows = causal(slots_of(n), positions, 20, window)
        assert agrees(ops, cache, 1, rows, scratch_rows=6), window
    many = causal(slots_of(n), positions, 70)  # enough groups for parts that are spans
    for scratch_rows in (1, 70):
        assert agrees(ops, cache, 4, many, scratch_rows=scratch_rows)


def test_five_thousand_cells(ops: kernels.DeviceOps) -> None:
    cache, positions = filled("f16", 5000, dim=16), np.arange(5000, dtype=np.int32)
    assert agrees(ops, cache, 3, causal(slots_of(5000), positions, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_softcap_and_slopes(ops: kernels.DeviceOps, kind: str) -> None:
    cache = filled(kind, 600)
    rows = causal(slots_of(600), np.arange(600, dtype=np.int32), 3, 560)
    slopes = np.array([0.5, 0.0625], np.float32)
    assert agrees(ops, cache, 2, rows, softcap=0.7)
    assert agrees(ops, cache, 2, rows, slopes=slopes)
    assert agrees(ops, cache, 2, rows, softcap=5.0, slopes=slopes)
    assert agrees(ops, cache, 2, rows, sinks=np.array([1.5, 40], np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_trees_and_rows_that_see_nothing(ops: kernels.DeviceOps, kind: str) -> None:
    """Branches share a prefix, and the same positions lie in other slots for each."""
    rng = np.random.default_rng(3)
    cache = Cache(kind, 1, 32, 320)
    order = rng.permutation(320)
    prefix, positions = order[:200], np.sort(rng.choice(2000, 200, False))
    cache.fill(prefix, positions)
    rows = [view([], [])]
    for branch in range(4):
        own, after = order[200 + 9 * branch : 209 + 9 * branch], 2001 + np.arange(9) * (branch + 1)
        cache.fill(own, after, seed=branch + 1)
        rows += [
            view(np.concatenate([prefix, own[:n]]), np.concatenate([positions, after[:n]]))
            for n in (1, 5, 9)
        ]
    rows += [view(prefix[50:51], positions[50:51]), view(prefix[10::7], positions[10::7])]
    assert agrees(ops, cache, 2, rows)
    assert agrees(ops, cache, 2, rows[::-1], scratch_rows=1)


def test_hidden_cells_may_hold_anything_and_what_is_seen_spreads(ops: kernels.DeviceOps) -> None:
    cache = filled("f16", 100)
    slots = slots_of(100)
    cache.cells.store_kv("scalar", int(slots[40]), *np.full((2, 32), np.nan, np.float32))
    cache.cells.store_kv("scalar", int(slots[60]), *np.full((2, 32), np.inf, np.float32))
    keep = np.delete(np.arange(100), [40, 60])
    hidden, seen = view(slots[keep], keep), view(slots, np.arange(100))
    assert agrees(ops, cache, 1, [hidden, seen, view(slots[:61], np.arange(61))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dim", "value_dim"), [(32, 64), (96, 32)])
def test_cells_hold_the_same_bytes(
    ops: kernels.DeviceOps, kind: str, dim: int, value_dim: int
) -> None:
    rng = np.random.default_rng(6)
    ours, law = Cache(kind, 2, dim, 48, value_dim), Cache(kind, 2, dim, 48, value_dim)
    slots = rng.permutation(48)[:20].astype(np.int32)
    k, v = (
        (rng.normal(0, 1, (20, 2 * n)) * np.exp2(rng.integers(-30, 18, (20, 1)))).astype("f4")
        for n in (dim, value_dim)
    )
    k[0] = 0
    v[1, 3], v[2, 5] = np.inf, -np.inf
    for slot, key, value in zip(slots, k, v, strict=True):
        law.cells.store_kv("scalar", int(slot), key, value)
    cells = on_device(ours)
    ops.store(cells, slots, k, v)
    np.testing.assert_array_equal(ours.k, law.k)
    np.testing.assert_array_equal(ours.v, law.v)

    chain = np.array([slots[0], slots[1], slots[1], 47, slots[3], slots[0]], np.int32)
    before = [law.cells.load_k("scalar", int(s)).reshape(-1) for s in (slots[0], slots[3])]
    ops.move(cells, chain)
    for slot, key in ((slots[1], before[0]), (47, before[0]), (slots[0], before[1])):
        assert same_bits(ours.cells.load_k("scalar", int(slot)).reshape(-1), key)

    some, others = slots[4:9].copy(), slots[10:15].copy()
    rows = ops.pass_keys(cells, some, others)
    for slot, row in zip(some, rows, strict=True):
        assert same_bits(ours.cells.load_k("scalar", int(slot)).reshape(-1), row)
    for slot, row in zip(others, rows, strict=True):
        law.cells.store_k("scalar", int(slot), row)
        wanted = law.cells.load_k("scalar", int(slot))
        assert same_bits(ours.cells.load_k("scalar", int(slot)), wanted)


def test_every_number_is_rounded_to_the_same_half(ops: kernels.DeviceOps) -> None:
    x = patterns(1 << 18, 5).reshape(16, -1)
    x = np.ascontiguousarray(x[:, : x.shape[1] // 16 * 16])
    ours, law = (Cache("f16", 1, x.shape[1], 16) for _ in range(2))
    for slot, row in enumerate(x):
        law.cells.store_kv("scalar", slot, row, row)
    ops.store(on_device(ours), np.arange(16, dtype=np.int32), x, x)
    for a, b in ((ours.k, law.k), (ours.v, law.v)):
        halves, expected = a.view(np.float16), b.view(np.float16)
        both = np.isnan(halves) & np.isnan(expected)
        assert (both | (halves.view(np.uint16) == expected.view(np.uint16))).all()
