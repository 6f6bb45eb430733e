"""Attention depends on the query and the visible (position, key, value) triples alone, bitwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .attention_cache import (
    BEST,
    KINDS,
    TABLES,
    Cache,
    attend,
    by_spans,
    causal,
    queries,
    reference,
    same_bits,
    view,
)

SHAPES = [  # heads, key/value heads, head_dim
    (9, 3, 64),
    (4, 1, 256),
    (12, 2, 128),
    (5, 5, 32),
    (8, 1, 96),
    (14, 2, 32),
    (2, 1, 512),
]


@pytest.mark.parametrize("softcap", [0.0, 2.5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_gives_the_scalar_bits_and_they_are_right(
    kind: str, shape: tuple[int, int, int], softcap: float
) -> None:
    n_heads, n_kv_heads, head_dim = shape
    n, n_rows = 150, 19
    cache = Cache(kind, n_kv_heads, head_dim, 176)
    slots, positions = view(np.arange(n) + 5, np.arange(n) + 40)
    cache.fill(slots, positions)
    q = queries(n_rows, n_heads, head_dim)
    rows = causal(slots, positions, n_rows)
    results = [attend(table, cache, q, rows, softcap=softcap) for table in TABLES]
    for result in results:
        assert same_bits(result, results[0])
    np.testing.assert_allclose(results[0], reference(cache, q, rows, softcap), rtol=0, atol=3e-6)


@pytest.mark.parametrize("dims", [(16, 16), (80, 80), (1, 1), (100, 20), (24, 120), (192, 128)])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_any_size_are_filled_up_with_zeros(kind: str, dims: tuple[int, int]) -> None:
    """Attention is right, whole and by spans."""
    head_dim, value_dim = dims
    cache = Cache(kind, 2, head_dim, 80, value_dim)
    slots, positions = view(np.arange(70), np.arange(70))
    cache.fill(slots, positions)
    q = queries(70, 4, head_dim)
    rows = causal(slots, positions, 70)
    results = [attend(table, cache, q, rows) for table in TABLES]
    for result in results:
        assert same_bits(result, results[0])
    np.testing.assert_allclose(results[0], reference(cache, q, rows), rtol=0, atol=3e-6)
    assert same_bits(by_spans(BEST, cache, q, rows, 1), results[0])


@pytest.mark.parametrize(("n_heads", "dims"), [(20, (576, 512)), (3, (40, 24)), (70, (48, 32))])
@pytest.mark.parametrize("kind", KINDS)
def test_values_may_be_the_first_part_of_keys(
    kind: str, n_heads: int, dims: tuple[int, int]
) -> None:
    """Wherever cells lie, whole and by spans; positions have gaps."""
    n, n_rows = 90, 5
    rng = np.random.default_rng(8)
    positions = np.sort(rng.permutation(200)[:n])
    q = queries(n_rows, n_heads, dims[0])
    results = []
    for slots in (np.arange(n) + 5, rng.permutation(144)[:n]):
        cache = Cache(kind, 1, dims[0], 144, dims[1], in_keys=True)
        s, p = view(slots, positions)
        cache.fill(s, p)
        rows = causal(s, p, n_rows)
        results += [attend(table, cache, q, rows) for table in TABLES]
        results.append(by_spans(BEST, cache, q, rows, 1))
        alone = attend(BEST, cache, q[-1:], rows[-1:])
        assert same_bits(alone[0], results[0][-1])
    for result in results:
        assert same_bits(result, results[0])
    np.testing.assert_allclose(results[0], reference(cache, q, rows), rtol=0, atol=3e-6)


@pytest.mark.parametrize("n_heads", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_one_to_eight_heads_and_of_many_more(kind: str, n_heads: int) -> None:
    cache = Cache(kind, 1, 32, 160)
    slots, positions = view(np.arange(150), np.arange(150))
    cache.fill(slots, positions)
    rows = causal(slots, positions, 7)
    q = queries(7, 71, 32)
    whole = attend(BEST, cache, q, rows)  # 71 heads: more than a tile holds
    part = attend(BEST, cache, np.ascontiguousarray(q[:, : n_heads * 32]), rows)
    assert same_bits(whole[:, : n_heads * 32], part)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", KINDS)
def test_where_the_cells_lie_does_not_matter(kind: str, table: str) -> None:
    n, n_rows = 300, 5
    rng = np.random.default_rng(2)
    positions = np.arange(n) + 100
    q = queries(n_rows, 6, 64)
    placements = {
        "aligned with positions": positions % 16 + positions - positions[0] // 16 * 16,
        "shifted": np.arange(n) + 7,
        "backwards": np.arange(n)[::-1] + 3,
        "runs in any order": (rng.permutation(n // 10)[:, None] * 10 + np.arange(10)).reshape(-1),
        "scattered": rng.permutation(400)[:n],
    }
    placements["aligned with positions"] = positions - 96
    results = []
    for slots in placements.values():
        cache = Cache(kind, 2, 64, 400)
        s, p = view(slots, positions)
        cache.fill(s, p)
        results.append(attend(table, cache, q, causal(s, p, n_rows)))
        results.append(attend(table, cache, q[-1:], causal(s, p, 1)))
    for batch, alone in zip(results[::2], results[1::2], strict=True):
        assert same_bits(batch, results[0])
        assert same_bits(alone[0], results[0][-1])


@pytest.mark.parametrize("window", [0, 1, 20, 64, 100, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_equals_the_row_in_any_batch(kind: str, window: int) -> None:
    n = n_rows = 170
    cache = Cache(kind, 1, 64, 192)
    slots, positions = view(np.arange(n) + 9, np.arange(n) + 30)
    cache.fill(slots, positions)
    q = queries(n_rows, 3, 64)
    rows = causal(slots, positions, n_rows, window)
    whole = attend(BEST, cache, q, rows)
    rng = np.random.default_rng(window)
    cuts = tuple(int(c) for c in np.unique(rng.integers(1, n_rows, 9)))
    assert same_bits(attend(BEST, cache, q, rows, cuts=cuts), whole)
    assert same_bits(attend(BEST, cache, q, rows, cuts=tuple(range(1, n_rows))), whole)
    # The same views as arrays of their own, in another order.
    order = rng.permutation(n_rows)
    copies = [(rows[r][0].copy(), rows[r][1].copy()) for r in order]
    assert same_bits(attend(BEST, cache, q[order], copies), whole[order])
    np.testing.assert_allclose(whole, reference(cache, q, rows), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_is_the_full_view_without_the_cells_it_hides(kind: str) -> None:
    """A ring of 48 cells and a full cache give the same bits."""
    window, n = 40, 130
    full, ring = Cache(kind, 2, 32, 144), Cache(kind, 2, 32, 48)
    positions = np.arange(n)
    full.fill(positions, positions)
    q = queries(n, 4, 32)
    for r in range(n):
        ring.fill([r % 48], [r])
        seen = positions[max(0, r + 1 - window) : r + 1]
        a = attend(BEST, full, q[r : r + 1], [view(seen, seen)])
        b = attend(BEST, ring, q[r : r + 1], [view(seen % 48, seen)])
        assert same_bits(a, b)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_cells_do_not_leak_whatever_they_hold(kind: str, table: str) -> None:
    """Rows of one tile see different branches; cells of the others hold infinities and nan."""
    n_prefix, n_rows = 90, 12
    cache = Cache(kind, 1, 32, 128)
    prefix = np.arange(n_prefix)
    cache.fill(prefix, prefix)
    rows = []
    for r in range(n_rows):  # siblings at one position, each in a cell of its own
        cache.fill([n_prefix + r], [n_prefix], seed=r)
        rows.append(view([*prefix, n_prefix + r], [*prefix, n_prefix]))
    q = queries(n_rows, 3, 32)
    clean = attend(table, cache, q, rows)
    np.testing.assert_allclose(clean, reference(cache, q, rows), rtol=0, atol=3e-6)
    for bad in (np.nan, np.inf, -np.inf):
        k, v = np.full((2, 32), bad, np.float32)
        cache.cells.store_kv(BEST, n_prefix + 4, k, v)
        dirty = attend(table, cache, q, rows)
        others = np.arange(n_rows) != 4
        assert same_bits(dirty[others], clean[others])
        assert np.isnan(dirty[4]).all(), "what a row sees is not hidden"


@pytest.mark.parametrize("kind", KINDS)
def test_later_rows_of_a_prefill_do_not_reach_earlier_ones(kind: str) -> None:
    n = 80
    cache = Cache(kind, 1, 32, 80)
    slots, positions = view(np.arange(n), np.arange(n))
    cache.fill(slots, positions)
    q = queries(n, 3, 32)
    rows = causal(slots, positions, n)
    windowed = causal(slots, positions, n, 9)
    clean, clean_windowed = attend(BEST, cache, q, rows), attend(BEST, cache, q, windowed)
    k, v = np.full((2, 32), np.nan, np.float32)
    cache.cells.store_kv(BEST, 45, k, v)
    dirty, dirty_windowed = attend(BEST, cache, q, rows), attend(BEST, cache, q, windowed)
    assert same_bits(dirty[:45], clean[:45])
    assert np.isnan(dirty[45:]).all()
    seen = (np.arange(n) >= 45) & (np.arange(n) < 45 + 9)
    assert same_bits(dirty_windowed[~seen], clean_windowed[~seen])
    assert np.isnan(dirty_windowed[seen]).all()


@pytest.mark.parametrize("reach", [0, 20, 400], ids=["slopes", "near", "far"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_distance_to_each_cell_counts_however_rows_are_shared_out(
    kind: str, reach: int
) -> None:
    n, n_rows = 700, 11
    rng = np.random.default_rng(4)
    slots, positions = view(np.arange(n) + 3, np.arange(n) + 250)
    cache = Cache(kind, 2, 32, 704)
    cache.fill(slots, positions)
    keep = rng.random(n) < 0.8
    keep[-n_rows:] = True
    rows = causal(slots, positions, n_rows) + causal(slots[keep], positions[keep], n_rows, 300)
    shape = (6, 2 * reach + 1) if reach else 6  # biases by distance, or slopes
    slopes = rng.uniform(0, 0.3, shape).astype(np.float32)
    q = queries(len(rows), 6, 32)
    whole = attend("scalar", cache, q, rows, slopes=slopes)
    np.testing.assert_allclose(whole, reference(cache, q, rows, slopes=slopes), rtol=0, atol=3e-6)
    for table in TABLES:
        one_by_one = tuple(range(1, len(rows)))
        assert same_bits(attend(table, cache, q, rows, slopes=slopes), whole)
        assert same_bits(attend(table, cache, q, rows, slopes=slopes, cuts=one_by_one), whole)
        assert same_bits(by_spans(table, cache, q, rows, 3, slopes), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_sinks_take_weight_however_rows_are_shared_out(kind: str) -> None:
    n, n_rows = 600, 9
    slots, positions = view(np.arange(n) + 3, np.arange(n))
    cache = Cache(kind, 2, 32, 608)
    cache.fill(slots, positions)
    rows = [*causal(slots, positions, n_rows), (slots[:0], positions[:0])]
    sinks = np.array([-3, 0, 2, 5, 90, -90], np.float32)
    q = queries(len(rows), 6, 32)
    whole = attend("scalar", cache, q, rows, sinks=sinks)
    np.testing.assert_allclose(whole, reference(cache, q, rows, sinks=sinks), rtol=0, atol=3e-6)
    heads = whole.reshape(len(rows), 6, 32)
    assert np.abs(heads[:, 4]).max() < 1e-30  # a huge sink takes all
    assert same_bits(whole[-1], np.zeros_like(whole[-1]))
    for table in TABLES:
        one_by_one = tuple(range(1, len(rows)))
        assert same_bits(attend(table, cache, q, rows, sinks=sinks), whole)
        assert same_bits(attend(table, cache, q, rows, sinks=sinks, cuts=one_by_one), whole)
        assert same_bits(by_spans(table, cache, q, rows, 2, sinks=sinks), whole)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", KINDS)
def test_spans_merged_equal_the_whole(kind: str, table: str) -> None:
    cache = Cache(kind, 1, 32, 1600)
    n = 1500
    slots, positions = view(np.arange(n) + 3, np.arange(n) + 250)
    cache.fill(slots, positions)
    keep = (positions < 600) | (positions >= 1030)  # nothing is seen of positions 600 to 1029
    rows = [
        (slots, positions),
        (slots[keep], positions[keep]),
        (slots[:200], positions[:200]),  # within the first span
        (slots[262:], positions[262:]),  # from a span's first position on
        (slots[:0], positions[:0]),
    ]
    q = queries(len(rows), 3, 32)
    whole = attend(table, cache, q, rows)
    assert same_bits(by_spans(table, cache, q, rows, 4), whole)
    np.testing.assert_allclose(whole, reference(cache, q, rows), rtol=0, atol=3e-6)


def test_views_of_ten_thousand_positions_are_right() -> None:
    n = 10_000
    cache = Cache("f16", 1, 32, n)
    slots, positions = view(np.arange(n), np.arange(n))
    cache.fill(slots, positions)
    q = queries(2, 2, 32)
    rows = causal(slots, positions, 2)
    results = [attend(table, cache, q, rows) for table in TABLES]
    for result in results:
        assert same_bits(result, results[0])
    np.testing.assert_allclose(results[0], reference(cache, q, rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize("table", TABLES)
def test_scores_far_apart_neither_overflow_nor_vanish(table: str) -> None:
    cache = Cache("f16", 1, 32, 144)
    slots, positions = view(np.arange(140), np.arange(140))
    cache.fill(slots, positions)
    rows = causal(slots, positions, 3)
    q = queries(3, 2, 32) * np.float32(300)  # scores of many hundreds
    got = attend(table, cache, q, rows)
    np.testing.assert_allclose(got, reference(cache, q, rows), rtol=0, atol=2e-3)


@pytest.mark.parametrize("table", TABLES)
def test_a_row_that_sees_nothing_gives_zeros(table: str) -> None:
    cache = Cache("f16", 1, 32, 16)
    slots, positions = view(np.arange(10), np.arange(10))
    cache.fill(slots, positions)
    nothing = view([], [])
    q = queries(3, 2, 32)
    out = attend(table, cache, q, [nothing, (slots, positions), nothing])
    assert not out[[0, 2]].any()
    assert same_bits(out[1:2], attend(table, cache, q[1:2], [(slots, positions)]))
    assert not attend(table, cache, q, [nothing] * 3).any()


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[tuple[int, list[int]]]]:
    """A placement seed and, per row, which of two sequences it reads and the positions it sees."""
    rows = []
    for _ in range(draw(st.integers(1, 10))):
        begin = draw(st.integers(0, 180))
        end = draw(st.integers(begin, min(200, begin + draw(st.sampled_from([3, 40, 200])))))
        holes = draw(st.sets(st.integers(0, 200), max_size=6))
        rows.append((draw(st.integers(0, 1)), [p for p in range(begin, end) if p not in holes]))
    return draw(st.integers(0, 2**16)), rows


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(KINDS))
def test_any_batch_gives_each_row_what_it_gets_alone(
    batch: tuple[int, list[tuple[int, list[int]]]], kind: str
) -> None:
    seed, wanted = batch
    rng = np.random.default_rng(seed)
    scattered = Cache(kind, 1, 32, 416)
    placement = rng.permutation(400) if seed % 2 else np.arange(400) + seed % 16
    slots = np.array(placement, np.int32).reshape(2, 200)
    positions = np.arange(200, dtype=np.int32) + 33
    scattered.fill(slots[0], positions, seed=0)
    scattered.fill(slots[1], positions, seed=1)
    rows = [(slots[s][seen], positions[seen]) for s, seen in wanted]
    q = queries(len(rows), 2, 32, seed)
    together = attend(BEST, scattered, q, rows)
    for r, (sequence, seen) in enumerate(wanted):
        packed = Cache(kind, 1, 32, 208)
        order = np.arange(len(seen), dtype=np.int32)
        packed.fill(order, positions[seen], seed=sequence)
        alone = attend(TABLES[r % len(TABLES)], packed, q[r : r + 1], [(order, positions[seen])])
        assert same_bits(together[r], alone[0])
