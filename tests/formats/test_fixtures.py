"""Checkpoints that the formats' own libraries have written (fixtures/make.py) give the values that
were saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyflow.formats
import pytest

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(p.name.removesuffix(".npz") for p in FIXTURES.glob("*.npz"))


def assert_same(checkpoint: pyflow.formats.Checkpoint, expected: dict[str, np.ndarray]) -> None:
    assert sorted(t.name for t in checkpoint.tensors) == sorted(expected)
    for t in checkpoint.tensors:
        array, peer = checkpoint.array(t.name), expected[t.name]
        assert (array.dtype, array.shape, t.shape) == (peer.dtype, peer.shape, peer.shape)
        assert t.nbytes == 0 or array.tobytes() == peer.tobytes() or same_with_nan(array, peer)


def same_with_nan(a: np.ndarray, b: np.ndarray) -> bool:
    """Bits but those of NaNs, of which a wider type has more."""
    some = ~np.isnan(b)
    return np.array_equal(a, b, equal_nan=True) and a[some].tobytes() == b[some].tobytes()


@pytest.mark.parametrize("name", FILES)
def test_values_are_those_that_were_saved(name: str) -> None:
    checkpoint = pyflow.formats.open(FIXTURES / name)
    assert checkpoint.path == FIXTURES / name
    assert checkpoint.nbytes == (FIXTURES / name).stat().st_size
    with np.load(FIXTURES / f"{name}.npz") as expected:
        assert_same(checkpoint, dict(expected))
