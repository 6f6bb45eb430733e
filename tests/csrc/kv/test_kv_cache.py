"""The KV cache by example: rings, trees, shifts, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import _core
from pyflow.errors import ResourceError, ShapeError

from ... import programs
from .kv_caches import CELL, LAYER, feed, kernels, make

ROOT = Path(__file__).parents[3]
TABLES: list[str] = _core.cpu_info()["tables"]
LAST = 2**31 - 2


def raw(cache: Any, layer: int, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of one cell's keys and values; writable views of Q8_0 storage."""
    heads, key_dim, value_dim = CELL
    block = np.dtype([("d", "<f2", 16), ("q", "i1", (32, 16))])
    k = cache.keys(layer).view(block).reshape(-1, heads, key_dim // 32)
    return k[slot // 16], cache.values(layer).reshape(-1, heads * value_dim // 32 * 34)[slot]


def test_text_streams_round_a_ring() -> None:
    cache = make(4, n_ctx=1000, n_batch=2)  # 4 + 2 cells, rounded up to 16
    feed(cache, 100, chunk=2)
    assert cache.groups() == [(4, 16, 3)]  # position 100 sees 97, 98, 99 and itself
    assert cache.cells(0, 0) == [(p, p % 16) for p in (97, 98, 99)]
    assert (cache.seq_pos_min(0), cache.seq_pos_max(0)) == (97, 99)


def test_a_sequence_alone_lies_in_order() -> None:
    cache = make(0, n_ctx=100)
    feed(cache, 100)
    assert cache.cells(0, 0) == [(p, p) for p in range(100)]


def test_sequences_that_grow_together_keep_runs_of_their_own() -> None:
    cache = make(0, n_ctx=256, n_seq_max=4)
    for p in range(32):
        cache.begin([(p, [s]) for s in range(4)])
        cache.commit()
    for s in range(4):
        slots = [slot for _, slot in cache.cells(0, s)]
        assert slots == list(range(slots[0], slots[0] + 32))
        assert slots[0] % 16 == 0


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_windowed_cache_is_sevenfold_smaller_at_eight_windows(kind: str) -> None:
    def nbytes(window: int) -> int:
        return int(kernels.kv_nbytes([(2, 50, 20, window)] * 8, kind, 8 * 512, 1, 32))

    assert nbytes(0) >= 7 * nbytes(512)
    per_cell = {"f16": 2 * (64 + 32) * 2, "q8_0": 2 * 3 * 34}[kind] * 8
    assert (nbytes(0), nbytes(512)) == (8 * 512 * per_cell, (512 + 32) * per_cell)
    cache = make(512, n_ctx=8 * 512, n_batch=32)
    feed(cache, 8 * 512, chunk=32)
    assert cache.groups() == [(512, 544, 511)]


def test_all_sequences_share_a_prefix_in_place() -> None:
    cache = make(0, 8, n_ctx=64, n_seq_max=256)
    feed(cache, 40)
    before = cache.groups()
    for s in range(1, 256):
        cache.seq_cp(0, s, 0, -1)
    assert cache.groups() == before
    cache.begin([(40, list(range(256)))])
    assert cache.views(0) == [(list(range(41)), list(range(41)))]
    assert cache.views(1)[0][0] == list(range(33, 41))
    cache.commit()
    for s in range(255):
        cache.seq_rm(s, 0, -1)
    assert [used for _, _, used in cache.groups()] == [41, 7]
    cache.seq_rm(255, 0, -1)
    assert [used for _, _, used in cache.groups()] == [0, 0]
    cache.check()


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_accepted_cells_move_behind_the_text_bit_for_bit(kind: str) -> None:
    cache = make(0, 6, n_ctx=64, n_seq_max=3, type=kind)
    feed(cache, 5)
    for b in (1, 2):
        cache.seq_cp(0, b, 0, -1)
    cache.begin([(5, [0, 1, 2]), (6, [1]), (6, [2]), (7, [1]), (7, [2])])
    rng = np.random.default_rng(7)
    for layer in range(2):
        for store in (cache.keys(layer), cache.values(layer)):
            store[:] = rng.integers(0, 256, store.size, np.uint8)
    old = [(cache.slots(g), cache.keys(g).copy(), cache.values(g).copy()) for g in range(2)]
    cache.commit([(0, 0), (2, 0), (4, 0)])
    cache.check()
    for layer, (slots, keys, values) in enumerate(old):
        held = dict(cache.cells(layer, 0))
        assert [held[p] for p in (5, 6, 7)] == list(range(held[5], held[5] + 3))
        width = {"f16": 2, "q8_0": 1}[kind]
        for p, row in ((5, 0), (6, 2), (7, 4)):
            lanes = [cell(k, slot, width) for k, slot in
                     ((keys, slots[row]), (cache.keys(layer), held[p]))]  # fmt: skip
            assert lanes[0] == lanes[1]
            size = values.size // 64 if layer == 0 else values.size // 32
            now = cache.values(layer).reshape(-1, size)[held[p]]
            assert (now == values.reshape(-1, size)[slots[row]]).all()


def cell(keys: np.ndarray, slot: int, width: int) -> bytes:
    """A cell's keys: its lane of each sixteen f16 (dims, or the scales of 32) or sixteen bytes."""
    heads, dim, _ = CELL
    widths = [2] * (heads * dim) if width == 2 else ([2] + [1] * 32) * (heads * dim // 32)
    at = slot // 16 * 16 * sum(widths)
    lane = b""
    for w in widths:
        lane += keys[at + slot % 16 * w : at + slot % 16 * w + w].tobytes()
        at += 16 * w
    return lane


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_shift_turns_the_keys_of_one_sequence_alone(kind: str) -> None:
    def negate(layer: int, k: np.ndarray, delta: int) -> None:
        assert (layer, delta, k.shape) == (0, -4, LAYER[:2])
        k[:] = -k

    cache = make(0, n_ctx=32, n_seq_max=2, type=kind, rotate=negate)
    cells = kernels.Cells(cache.keys(0), cache.values(0), kind, *CELL)
    rng = np.random.default_rng(11)
    keys = rng.integers(-127, 128, (12, *CELL[:2])).astype(np.float32)
    keys[:, :, :] = np.where(np.arange(32) == 3, 127, keys)  # q8_0 holds them exactly
    keys[:, :, LAYER[1] :] = 0
    values = np.zeros((CELL[0], CELL[2]), np.float32)
    for p in range(12):
        cache.begin([(p, [0])])
        cells.store_kv(TABLES[0], cache.slots(0)[0], keys[p], values)
        cache.commit()
    cache.seq_cp(0, 1, 0, 8)
    cache.seq_rm(0, 0, 4)
    cache.seq_add(0, 4, -1, -4)
    cache.check()
    assert [p for p, _ in cache.cells(0, 0)] == list(range(8))
    for p, slot in cache.cells(0, 0):
        assert (cells.load_k(TABLES[0], slot) == -keys[p + 4]).all()
    for p, slot in cache.cells(0, 1):
        assert (cells.load_k(TABLES[0], slot) == keys[p]).all()


def test_attention_over_a_ring_equals_a_full_cache_under_a_mask() -> None:
    window, n, heads = 70, 600, 4
    cache = make(0, window, n_ctx=n, n_batch=7)
    cells = [kernels.Cells(cache.keys(i), cache.values(i), "f16", *CELL) for i in range(2)]
    rng = np.random.default_rng(3)
    n_kv_heads, key_dim, value_dim = CELL
    q = rng.standard_normal((n, heads * key_dim), np.float32)
    k = rng.standard_normal((n, n_kv_heads, key_dim), np.float32)
    v = rng.standard_normal((n, n_kv_heads, value_dim), np.float32)
    for start in range(0, n, 7):
        rows = range(start, min(start + 7, n))
        cache.begin([(p, [0]) for p in rows])
        for layer in range(2):
            for p, slot in zip(rows, cache.slots(layer), strict=True):
                cells[layer].store_kv(TABLES[0], slot, k[p], v[p])
        full = [(np.array(p, np.int32), np.array(s, np.int32)) for p, s in cache.views(0)]
        masked = [(s[p > p[-1] - window], p[p > p[-1] - window]) for p, s in full]
        ring = [(np.array(s, np.int32), np.array(p, np.int32)) for p, s in cache.views(1)]
        for table in TABLES:
            out = np.full((2, len(rows), heads * value_dim), np.nan, np.float32)
            for layer, views in enumerate((masked, ring)):
                args = (cells[layer], q[rows.start : rows.stop], views, heads, 0.1, 0.0)
                attention = kernels.Attention(table, *args)
                for head in range(n_kv_heads):
                    attention.attend(out[layer], 0, len(rows), head)
            assert np.isfinite(out).all()
            assert (out[0].view(np.uint32) == out[1].view(np.uint32)).all()
        cache.commit()


def test_going_back_behind_a_window_is_refused_until_cut() -> None:
    cache = make(0, 10, n_ctx=100)
    feed(cache, 50)  # the ring holds 41 .. 49
    assert cache.seq_reusable(0) == cache.seq_reusable(0, 50) == 50
    assert cache.seq_reusable(0, 49) == 0  # position 49 would see 40
    cache.seq_rm(0, 45, -1)
    with pytest.raises(ResourceError) as refusal:
        cache.begin([(45, [0])])
    assert str(refusal.value) == (
        "KV cache: sequence 0 at position 45 reaches back to position 36, which the layers of "
        "window 10 no longer hold; cut it to 0 positions (seq_rm) and compute the rest again"
    )
    assert cache.seq_reusable(0) == 0
    cache.seq_rm(0, cache.seq_reusable(0), -1)
    feed(cache, 9)
    assert cache.seq_reusable(0, 4) == 4  # nothing has been evicted yet
    cache.seq_rm(0, 4, -1)
    feed(cache, 50, start=4)


def test_a_fork_keeps_its_beginning_reusable() -> None:
    cache = make(10, 5, n_ctx=100, n_seq_max=2)
    feed(cache, 10)
    cache.seq_cp(0, 1, 0, -1)
    feed(cache, 60, start=10)
    assert [cache.seq_reusable(0, n) for n in (9, 10, 50, 69, 70)] == [0, 10, 10, 10, 70]
    cache.seq_rm(0, 10, -1)
    feed(cache, 20, start=10)
    assert cache.seq_reusable(1) == 10
    feed(cache, 20, start=10, seq=1)


def test_a_row_of_two_sequences_misses_only_what_both_have_lost() -> None:
    cache = make(0, 4, n_ctx=100, n_seq_max=2)
    feed(cache, 10)  # position 10 sees 7 .. 9
    feed(cache, 20, seq=1)
    cache.seq_rm(1, 9, -1)  # and would see 7 and 8, which are gone
    with pytest.raises(ResourceError, match=r"sequence 1\b.*\b10\b.*\b7\b"):
        cache.begin([(10, [1])])
    cache.begin([(10, [0, 1])])
    assert [cache.views(layer)[0][0] for layer in range(2)] == [[10], [10]]
    cache.abort()
    feed(cache, 10, start=10)
    cache.seq_rm(0, 8, -1)  # now both have lost something there, but not the same
    cache.seq_rm(1, 7, 8)
    cache.begin([(10, [0, 1])])


def test_a_copied_ending_takes_a_sequence_past_its_own_cells() -> None:
    cache = make(0, 4, n_ctx=100, n_seq_max=2)
    feed(cache, 20)
    feed(cache, 6, seq=1)  # the ring holds 3, 4 and 5 of it
    cache.seq_cp(0, 1, 6, -1)
    cache.check()
    assert cache.cells(1, 0) == cache.cells(1, 1)
    assert cache.groups()[1][2] == 3


def test_text_may_come_out_of_order() -> None:
    cache = make(0, n_ctx=64, n_seq_max=2)
    feed(cache, 5, seq=1, start=20)
    feed(cache, 5, seq=1, start=10)
    feed(cache, 10)
    cache.seq_cp(0, 1, 0, 8)
    cache.begin([(25, [1]), (15, [1]), (9, [1])])
    seen = [*range(8), 9, *range(10, 16), *range(20, 26)]
    assert [where for where, _ in cache.views(0)] == [
        [p for p in seen if p <= q] for q in (25, 15, 9)
    ]
    cache.commit()
    cache.check()


def test_a_shift_may_carry_text_over_text() -> None:
    cache = make(0, n_ctx=32, rotate=lambda *_: None)
    feed(cache, 8, start=10)
    feed(cache, 4, start=18)
    for p0, p1, delta, expected in [
        (18, -1, -16, [*range(2, 6), *range(10, 18)]),
        (0, 10, 16, range(10, 22)),
        (12, 14, -12, [0, 1, 10, 11, *range(14, 22)]),
    ]:
        cache.seq_add(0, p0, p1, delta)
        cache.check()
        assert [p for p, _ in cache.cells(0, 0)] == list(expected)
        cache.begin([(30, [0])])
        assert cache.views(0)[0][0] == [*expected, 30]
        cache.abort()


def test_what_a_shift_drops_needs_no_cell() -> None:
    cache = make(0, n_ctx=12, n_seq_max=2, rotate=lambda *_: None)
    feed(cache, 8)
    cache.seq_cp(0, 1, 0, -1)
    with pytest.raises(ResourceError, match=r"\b5\b.*\b4\b.*\b12\b"):
        cache.seq_add(0, 0, -1, -3)
    cache.seq_add(0, 0, -1, -5)
    assert [p for p, _ in cache.cells(0, 0)] == [0, 1, 2]
    assert [p for p, _ in cache.cells(0, 1)] == list(range(8))
    cache.check()


def test_pending_rows_evict_nothing() -> None:
    cache = make(4, n_ctx=100)
    feed(cache, 8)
    held = cache.cells(0, 0)
    cache.begin([(p, [0]) for p in range(8, 16)])
    assert cache.cells(0, 0) == held
    cache.abort()
    assert cache.cells(0, 0) == held
    assert cache.seq_reusable(0) == 8


def test_positions_reach_to_the_last() -> None:
    cache = make(0, 3, n_ctx=16, rotate=lambda *_: None)
    feed(cache, 8, start=LAST - 7)
    assert cache.seq_pos_max(0) == LAST
    with pytest.raises(ShapeError, match=rf"\b{LAST + 1}\b"):
        cache.begin([(LAST + 1, [0])])
    with pytest.raises(ShapeError, match=rf"\b{LAST}\b"):
        cache.seq_add(0, 0, -1, 1)
    cache.seq_add(0, 0, -1, 7 - LAST)
    assert [p for p, _ in cache.cells(0, 0)] == list(range(8))
    cache.check()


def test_a_steady_step_allocates_nothing(build_program: Callable[..., Path]) -> None:
    sources = [Path(__file__).with_name("kv_cache_driver.cpp")]
    sources += [ROOT / "csrc/core/buffer.cpp", ROOT / "csrc/core/message.cpp"]
    sources += sorted((ROOT / "csrc/kv").glob("*.cpp"))
    sources += [ROOT / f"csrc/kv/storage/{name}.cpp" for name in ("cell_layout", "storage")]
    done = programs.run(build_program(sources))
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(r"allocations: .*\n", done.stdout)


def test_trees_leak_no_cell() -> None:
    rng = np.random.default_rng(3)
    cache = make(0, 7, n_ctx=200, n_seq_max=2, n_batch=24)
    ends = [0, 0]
    for _ in range(4000):
        rows = [(ends[s], [s]) for s in range(2)]
        parents = [-1, -1]
        cache.grow(rows, parents)
        for _ in range(rng.integers(0, 3)):
            more, their = [], []
            for _ in range(rng.integers(1, 6)):
                parent = int(rng.integers(0, len(rows) + len(more)))
                p, s = (rows + more)[parent]
                more.append((p + 1, s))
                their.append(parent)
            cache.grow(more, their)
            rows, parents = rows + more, parents + their
        if rng.random() < 0.3:
            cache.abort()
        else:
            node, path = int(rng.integers(0, len(rows))), []
            while node >= 0:
                path.append(node)
                node = parents[node]
            seq = rows[path[0]][1][0]
            cache.commit([(i, seq) for i in path[::-1]])
            ends[seq] += len(path)
        for s in range(2):
            if ends[s] > 80:
                cache.seq_rm(s, 0, -1)
                ends[s] = 0
        assert [used for _, _, used in cache.groups()] == [
            sum(ends),
            sum(min(6, end) for end in ends),
        ]
    cache.check()
