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
        ([], ShapeError, "rows"),
        ([(9, [0])] * 10, ShapeError, r"\b10\b.*\b9\b.*n_batch"),
        ([(-1, [0])], ShapeError, r"position -1\b"),
        ([(0, [])], ShapeError, r"position 0\b"),
        ([(0, [4])], ShapeError, r"sequence 4\b.*\b3\b"),
        ([(0, [256])], ShapeError, "256"),
        ([(5, [3]), (4, [1, 3])], ShapeError, r"sequence 3\b.*position 4\b"),
        ([(7, [0, 2]), (7, [1, 2])], ShapeError, r"sequence 2\b.*position 7\b"),
        ([(p, [0]) for p in range(8)], ResourceError, r"\b8\b.*\b7\b.*\b12\b"),
    ]:
        with pytest.raises(error, match=message):
            cache.begin(rows)
        cache.check()
        assert cache.groups() == [(0, 12, 5)]
    feed(cache, 7)


def test_steps_and_operations_do_not_mix() -> None:
    cache = make(0, n_ctx=16, n_seq_max=2, rotate=lambda *_: None)
    for call in (cache.commit, cache.abort, lambda: cache.commit([])):
        with pytest.raises(PyflowError):
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
        with pytest.raises(PyflowError):
            call()
    for accepted, message in [([1], r"row 1\b"), ([0, 0], r"row 0\b")]:
        with pytest.raises(ShapeError, match=message):
            cache.commit([(row, 0) for row in accepted])
    cache.commit([(0, 1)])
    assert [cache.seq_pos_max(s) for s in range(2)] == [-1, 0]


def test_a_cache_that_cannot_be_is_refused() -> None:
    for layers, kind, n_ctx, n_seq, n_batch, error, message in [
        ([], "f16", 16, 1, 1, ShapeError, "layers"),
        ([(1, 32, 32, 0)], "f16", 0, 1, 1, ShapeError, r"n_ctx.*\b0\b"),
        ([(1, 32, 32, 0)], "f16", 2**31, 1, 1, ShapeError, "n_ctx"),
        ([(1, 32, 32, 0)], "f16", 16, 257, 1, ShapeError, r"n_seq_max.*\b257\b"),
        ([(1, 32, 32, 0)], "f16", 16, 1, 0, ShapeError, r"n_batch.*\b0\b"),
        ([(1, 32, 32, -1)], "f16", 16, 1, 1, ShapeError, r"window.*-1\b"),
        ([(0, 32, 32, 0)], "f16", 16, 1, 1, ShapeError, r"layer 0\b.*\b0\b.*\b32\b"),
        ([(1, 16, 16, 0), (1, 0, 16, 0)], "f16", 16, 1, 1, ShapeError, r"layer 1\b.*\b0\b"),
        ([(1, 16385, 16, 0)], "f16", 16, 1, 1, ShapeError, r"\b16384\b.*\b16385\b"),
        ([(1, 16, 16385, 0)], "f16", 16, 1, 1, ShapeError, r"\b16384\b.*\b16385\b"),
        ([(1024, 4096, 4096, 0)] * 64, "f16", 2**31 - 17, 1, 1, ResourceError, "KV cache"),
        ([(2**20, 2**14, 2**14, 0)] * 64, "f16", 2**31 - 17, 1, 1, ResourceError, "KV cache"),
    ]:
        with pytest.raises(error, match=message):
            kernels.KvCache(layers, kind, n_ctx, n_seq, n_batch)
    with pytest.raises(UnsupportedError):
        make(0, n_ctx=16).seq_add(0, 0, -1, 1)


def test_trees_that_cannot_be_are_refused() -> None:
    cache = make(0, n_ctx=16, n_seq_max=2, n_batch=8)
    feed(cache, 3)
    cache.grow([(3, [0]), (4, [0])], [-1, 0])
    for rows, parents, message in [
        ([(4, [0])], [], r"\b1\b.*\b0\b"),
        ([(3, [0])], [-1], "root"),
        ([(4, [0])], [2], r"parent 2\b.*row 2\b"),
        ([(6, [0])], [1], r"row 1\b.*position 4\b"),
        ([(5, [1])], [1], r"row 1\b"),
        ([(5, [0])] * 7, [1] * 7, r"\b9\b"),
        ([], [], "rows"),
    ]:
        with pytest.raises(ShapeError, match=message):
            cache.grow(rows, parents)
        cache.check()
    with pytest.raises(PyflowError):
        cache.begin([(5, [0])])
    cache.grow([(5, [0]), (0, [1])], [1, -1])
    with pytest.raises(ShapeError):
        cache.commit([(1, 0), (0, 0)])
    cache.commit([(0, 0), (1, 0), (3, 1)])
    assert [cache.seq_pos_max(s) for s in range(2)] == [4, 0]
    assert cache.groups() == [(0, 16, 6)]
