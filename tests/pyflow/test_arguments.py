"""What a caller hands over and cannot be: one line that names it, on every way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow import Context, Model, PyflowError
from pyflow.arguments import whole_numbers

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Iterator[Model]:
    with pyflow.load(model_path("smollm2"), n_threads=1) as loaded:
        yield loaded


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with model.context(64, n_seq_max=2, n_batch=4) as made:
        yield made


CALLS: dict[str, tuple[Callable[[Model, Context], object], str, str]] = {
    "float token": (
        lambda m, _: m.logits([1.7, 2.2]),  # type: ignore[list-item]
        "tokens",
        "[1.7, 2.2]",
    ),
    "great token": (
        lambda m, _: m.logits([2**40]),
        "tokens",
        "1099511627776",
    ),
    "greater token": (
        lambda m, _: m.logits([2**70]),
        "tokens",
        "[1180591620717411303424]",
    ),
    "ragged tokens": (
        lambda m, _: m.logits([[1], [2, 3]]),  # type: ignore[list-item]
        "tokens",
        "[[1], [2, 3]]",
    ),
    "float position": (
        lambda _, c: c.forward([1], [1e9]),
        "positions",
        "[1000000000.0]",
    ),
    "sequences": (
        lambda _, c: c.forward([1], [0], [2**40]),
        "seqs",
        "1099511627776",
    ),
    "logits": (
        lambda _, c: c.forward([1], logits="x"),  # type: ignore[arg-type]
        "logits",
        "'x'",
    ),
    "regime": (
        lambda _, c: c.forward([1], regime=None),  # type: ignore[arg-type]
        "regime",
        "None",
    ),
    "delta": (
        lambda _, c: c.seq_add(0, 0, -1, 2**40),
        "delta",
        "1099511627776",
    ),
    "float sequence": (
        lambda _, c: c.seq_keep(0.5),  # type: ignore[arg-type]
        "seq",
        "0.5",
    ),
    "n_ctx": (
        lambda m, _: m.context(1.5),  # type: ignore[arg-type]
        "n_ctx",
        "1.5",
    ),
    "n_seq_max": (
        lambda m, _: m.context(n_seq_max=0),
        "n_seq_max",
        "0",
    ),
    "n_seq_max of a plan": (
        lambda m, _: pyflow.plan(m.path, n_seq_max=0),
        "n_seq_max",
        "0",
    ),
    "n_batch of a plan": (
        lambda m, _: pyflow.plan(m.path, n_batch=2**40),
        "n_batch",
        "1099511627776",
    ),
    "cache_type": (
        lambda m, _: m.context(cache_type=8),  # type: ignore[arg-type]
        "cache_type",
        "8",
    ),
    "n_threads": (
        lambda m, _: pyflow.load(m.path, n_threads=1.5),  # type: ignore[arg-type]
        "n_threads",
        "1.5",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_one_line_that_names_it(
    model: Model, context: Context, name: str
) -> None:
    call, argument, found = CALLS[name]
    with pytest.raises(PyflowError) as caught:
        call(model, context)
    said = str(caught.value)
    assert said.startswith(f"{argument}: ")
    assert found in said
    assert "\n" not in said


def test_whole_numbers_of_any_type_are_taken() -> None:
    arrays = [np.array([1, 2], np.uint64), np.array([1, 0, 2], np.int32)[::2]]
    for given in ([1, 2], (1, 2), range(1, 3), *arrays):
        taken = whole_numbers("x", given)
        assert taken.dtype == np.int32
        assert taken.flags.c_contiguous
        assert taken.tolist() == [1, 2]
    assert whole_numbers("x", []).shape == (0,)
