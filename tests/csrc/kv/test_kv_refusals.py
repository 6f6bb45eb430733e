"""What a KV cache refuses, by an error that says why, and unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyflow import _core
from pyflow.errors import PyflowError, ResourceError, ShapeError, UnsupportedError

from .kv_caches import feed, kernels, make

ROOT = Path(__file__).parents[3]
TABLES: list[str] = _core.cpu_info()["tables"]
LAST = 2**31 - 2


def test_what_a_step_cannot_have_is_named() -> None:
    cache = make(0, n_ctx=12, n_seq_max=4, n_batch=9)
    feed(cache, 5, seq=3)
    for rows, error, message in [
        ([], ShapeError, "a step without rows"),
        ([(9, [0])] * 10, ShapeError, r"10 rows; this cache takes 9 \(n_batch\)"),
        ([(-1, [0])], ShapeError, "a row at position -1"),
        ([(0, [])], ShapeError, "position 0 belongs to no sequence"),
        ([(0, [4])], ShapeError, r"sequence 4 does not exist; this cache has 0 \.\. 3"),
        ([(0, [256])], ShapeError, "256"),
        ([(5, [3]), (4, [1, 3])], ShapeError, "sequence 3 already holds position 4"),
        ([(7, [0, 2]), (7, [1, 2])], ShapeError, "two rows of the step give sequence 2 position 7"),
        ([(p, [0]) for p in range(8)], ResourceError, "needs 8 cells .*, 7 of 12 are free"),
    ]:
        with pytest.raises(error, match=message):
            cache.begin(rows)
        cache.check()
        assert cache.groups() == [(0, 12, 5)]
    feed(cache, 7)


def test_steps_and_operations_do_not_mix() -> None:
    cache = make(0, n_ctx=16, n_seq_max=2, rotate=lambda *_: None)
    for call in (cache.commit, cache.abort, lambda: cache.commit([])):
        with pytest.raises(PyflowError, match="without begin"):
            call()
    cache.begin([(0, [0])])
    for call in (
        lambda: cache.begin([(1, [0])]),
        lambda: cache.seq_cp(0, 1, 0, -1),
        lambda: cache.seq_rm(0, 0, -1),
        lambda: cache.seq_keep(0),
        lambda: cache.seq_add(0, 0, -1, 1),
        cache.clear,
    ):
        with pytest.raises(PyflowError, match="pending; commit or abort the step first"):
            call()
    for accepted, message in [([1], "accepted row 1; the step has 1"), ([0, 0], "twice")]:
        with pytest.raises(ShapeError, match=message):
            cache.commit([(row, 0) for row in accepted])
    cache.commit([(0, 1)])
    assert [cache.seq_pos_max(s) for s in range(2)] == [-1, 0]


def test_a_cache_that_cannot_be_is_refused() -> None:
    for layers, kind, n_ctx, n_seq, n_batch, error, message in [
        ([], "f16", 16, 1, 1, ShapeError, "number of layers"),
        ([(1, 32, 0)], "f16", 0, 1, 1, ShapeError, "n_ctx is 0"),
        ([(1, 32, 0)], "f16", 2**31, 1, 1, ShapeError, "n_ctx"),
        ([(1, 32, 0)], "f16", 16, 257, 1, ShapeError, "n_seq_max is 257"),
        ([(1, 32, 0)], "f16", 16, 1, 0, ShapeError, "n_batch is 0"),
        ([(1, 32, -1)], "f16", 16, 1, 1, ShapeError, "window is -1"),
        ([(0, 32, 0)], "f16", 16, 1, 1, ShapeError, "layer 0 has 0 heads of 32"),
        ([(1, 32, 0), (1, 48, 0)], "q8_0", 16, 1, 1, UnsupportedError, "layer 1: heads of 48"),
        ([(1, 40, 0)], "f16", 16, 1, 1, UnsupportedError, "layer 0: heads of 40"),
        ([(1, 16400, 0)], "f16", 16, 1, 1, UnsupportedError, "multiples of 16 up to 16384"),
        ([(1024, 4096, 0)] * 64, "f16", 2**31 - 17, 1, 1, ResourceError, "KV cache"),
        ([(2**20, 2**14, 0)] * 64, "f16", 2**31 - 17, 1, 1, ResourceError, "KV cache"),
    ]:
        with pytest.raises(error, match=message):
            kernels.KvCache(layers, kind, n_ctx, n_seq, n_batch)
    with pytest.raises(UnsupportedError, match="cannot move to other positions"):
        make(0, n_ctx=16).seq_add(0, 0, -1, 1)


def test_trees_that_cannot_be_are_refused() -> None:
    cache = make(0, n_ctx=16, n_seq_max=2, n_batch=8)
    feed(cache, 3)
    cache.grow([(3, [0]), (4, [0])], [-1, 0])
    for rows, parents, message in [
        ([(4, [0])], [], "expected a parent for each of 1 rows, found 0"),
        ([(3, [0])], [-1], "second root of a sequence"),
        ([(4, [0])], [2], "parent 2 of row 2"),
        ([(6, [0])], [1], "does not continue its parent, row 1 at position 4"),
        ([(5, [1])], [1], "does not continue its parent"),
        ([(5, [0])] * 7, [1] * 7, "a step of 9 rows"),
        ([], [], "without rows"),
    ]:
        with pytest.raises(ShapeError, match=message):
            cache.grow(rows, parents)
        cache.check()
    with pytest.raises(PyflowError, match="pending"):
        cache.begin([(5, [0])])
    cache.grow([(5, [0]), (0, [1])], [1, -1])
    with pytest.raises(ShapeError, match="ascend"):
        cache.commit([(1, 0), (0, 0)])
    cache.commit([(0, 0), (1, 0), (3, 1)])
    assert [cache.seq_pos_max(s) for s in range(2)] == [4, 0]
    assert cache.groups() == [(0, 16, 6)]
