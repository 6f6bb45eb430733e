"""Contract C1: logits of a row depend on the weights and the row's own tokens and positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import pyflow
from pyflow import _core

Logits = NDArray[np.float32]
Load = Callable[..., pyflow.Model]


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def path(request: pytest.FixtureRequest, model_path: Callable[[str], Path]) -> Path:
    return model_path(request.param)


@pytest.fixture(scope="module")
def model(path: Path) -> pyflow.Model:
    return pyflow.load(path, n_threads=2)


@pytest.fixture(scope="module")
def tokens(model: pyflow.Model) -> NDArray[np.int32]:
    rng = np.random.default_rng(20)
    return rng.integers(0, model.spec.n_vocab, 161).astype(np.int32)


@pytest.fixture(scope="module")
def alone(model: pyflow.Model, tokens: NDArray[np.int32]) -> Logits:
    """Every row computed by itself: the plainest decoding there is."""
    with model.context(256) as context:
        return np.concatenate([context.forward(tokens[i : i + 1]) for i in range(tokens.size)])


def same(a: Logits, b: Logits) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("n_rows", [7, 17, 160])
def test_rows_do_not_see_their_batch(
    model: pyflow.Model, tokens: NDArray[np.int32], alone: Logits, n_rows: int
) -> None:
    with model.context(256, n_batch=n_rows) as context:
        assert same(context.forward(tokens, logits="all"), alone)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_rows_do_not_see_the_thread_count(
    path: Path,
    tokens: NDArray[np.int32],
    alone: Logits,
    n_threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However few cores there are.
    monkeypatch.setattr(_core, "ThreadPool", partial(_core.ThreadPool, adapts=False))
    with pyflow.load(path, n_threads=n_threads) as model, model.context(256) as context:
        assert same(context.forward(tokens[:100], logits="all"), alone[:100])
        assert same(context.forward(tokens[100:101]), alone[100:101])


@pytest.mark.parametrize("isa", [t for t in _core.cpu_info()["tables"] if t != "avx512"])
def test_rows_do_not_see_the_instruction_set(
    path: Path,
    tokens: NDArray[np.int32],
    alone: Logits,
    isa: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYFLOW_ISA", isa)
    n = 6 if isa == "scalar" else 64
    with pyflow.load(path, n_threads=2) as model, model.context(256) as context:
        assert model.isa == isa
        assert same(context.forward(tokens[:n], logits="all"), alone[:n])


def test_rows_do_not_see_where_cells_lie(
    model: pyflow.Model, tokens: NDArray[np.int32], alone: Logits
) -> None:
    n = 48
    with model.context(256, n_seq_max=4) as context:
        # Two sequences token by token in turn: the cells of each lie apart. Then holes are made.
        noise = tokens[::-1]
        for i in range(n):
            context.forward(noise[i : i + 1], [i], 1, logits="none")
            row = context.forward(tokens[i : i + 1], [i], 2)
            assert same(row, alone[i : i + 1]), i
        context.seq_rm(1, 10, 30)
        context.seq_rm(2, 20)
        mixed = context.forward(tokens[20:n], np.arange(20, n), 2, logits="all")
        assert same(mixed, alone[20:n])


def test_sequences_of_one_batch_do_not_meet(
    model: pyflow.Model, tokens: NDArray[np.int32], alone: Logits
) -> None:
    n = 40
    with model.context(256, n_seq_max=3) as context:
        ids = np.concatenate([tokens[:n], tokens[n : 2 * n], tokens[:n]])
        positions = np.concatenate([np.arange(n)] * 3)
        out = context.forward(ids, positions, [0] * n + [1] * n + [2] * n, logits="all")
        assert same(out[:n], alone[:n])
        assert same(out[2 * n :], alone[:n])
        assert not same(out[n : 2 * n], alone[:n])


def test_a_shared_prefix_is_as_good_as_its_own(
    model: pyflow.Model, tokens: NDArray[np.int32], alone: Logits
) -> None:
    with model.context(256, n_seq_max=3) as context:
        context.forward(tokens[:50], logits="none")
        context.seq_cp(0, 2)
        context.seq_rm(0)
        assert same(context.forward(tokens[50:60], None, 2, logits="all"), alone[50:60])


def test_two_stages_equal_one_wherever_they_are_cut(
    model: pyflow.Model, tokens: NDArray[np.int32], alone: Logits
) -> None:
    n = 12
    native = pyflow.formats.open(model.path).native
    spec, at = model.spec, np.arange(n, dtype=np.int32)
    size = {"n_ctx": 64, "n_seq_max": 1, "n_batch": 32, "cache_type": "f16"}
    # Every place of a small model is tested in tests/csrc/model/test_blocks.py.
    for cut in (1, 6, spec.n_layers - 1):
        front = _core.Context(_core.Stage(native, spec.stage(0, cut), model.pool), **size)
        back = _core.Context(_core.Stage(native, spec.stage(cut), model.pool), **size)
        front.forward(tokens[:n], at, 0, [])
        hidden = front.hidden()
        assert same(back.forward(hidden, at, 0, at), alone[:n]), cut


def test_layers_that_are_not_loaded_are_left_out_as_by_a_context(
    path: Path, model: pyflow.Model, tokens: NDArray[np.int32]
) -> None:
    some = [0, 1, 5, 8, model.spec.n_layers - 1]
    with pyflow.load(path, n_threads=1, layers=some) as shallow, shallow.context(64) as context:
        found = context.forward(tokens[:40], logits="all")
        assert shallow.spec.n_layers == 5
        assert shallow.stage.weight_bytes < model.stage.weight_bytes
    with model.context(64, layers=some) as context:
        assert same(context.forward(tokens[:40], logits="all"), found)
    with pytest.raises(pyflow.ShapeError, match=r"\[99\]"):
        pyflow.load(path, layers=[0, 99])
