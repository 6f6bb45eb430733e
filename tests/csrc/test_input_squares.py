"""What matrices are multiplied by is added up as it was, expert by expert, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import ShapeError
from pyflow.spec import ModelSpec, Ref, Source

from .block_reference import Array, Reference
from .test_blocks import TOKENS, built, context, one_by_one, run, same, stage
from .tiny_models import TINY, Draft

Sums = dict[tuple[str, int], tuple[int, NDArray[np.float64]]]


class Recorder(Reference):
    """By tensor and first row: rows that were multiplied, and the sums of their squares."""

    def __init__(self, spec: ModelSpec, draft: Draft) -> None:
        super().__init__(spec, draft.tensors, 70)
        self.sums: Sums = {}

    def linear(self, ref: Ref, x: Array, bias: Ref | None = None) -> Array:
        source = ref if isinstance(ref, Source) else Source(ref)
        key = source.name, source.rows[0][0] if source.rows else 0
        rows = x.reshape(-1, x.shape[-1])
        n, sums = self.sums.get(key, (0, np.zeros(x.shape[-1])))
        self.sums[key] = n + len(rows), sums + np.square(rows).sum(0)
        return super().linear(ref, x, bias)


def observed(of: _core.Stage, by_row: bool = False) -> tuple[Sums, NDArray[np.float32]]:
    squares, over = _core.InputSquares(of), context(of)
    over.observe(squares)
    logits = one_by_one(over) if by_row else run(over)
    return {(name, row): (n, sums) for name, row, n, sums in squares.sums()}, logits


@pytest.mark.parametrize("name", [*TINY, "everything"])
def test_sums_are_those_of_the_definition(name: str, tmp_path: Path) -> None:
    spec, draft, file = built(name, tmp_path)
    found, logits = observed(stage(file, spec))
    reference = Recorder(spec, draft)
    reference.logits(TOKENS)
    assert {key for key, (n, _) in found.items() if n} == reference.sums.keys()
    for key, (n, sums) in reference.sums.items():
        assert found[key][0] == n
        np.testing.assert_allclose(found[key][1], sums, rtol=0.02, atol=2e-3 * sums.max())
    assert same(logits, run(context(stage(file, spec))))


def test_sums_do_not_depend_on_threads_or_on_how_rows_are_batched(tmp_path: Path) -> None:
    spec, _, file = built("everything", tmp_path)
    want, _ = observed(stage(file, spec))
    for n_threads, by_row in ((1, False), (3, False), (2, True)):
        pool = _core.ThreadPool(n_threads, False)
        found, _ = observed(stage(file, spec, pool), by_row)
        for key, (n, sums) in want.items():
            assert found[key][0] == n
            assert found[key][1].tobytes() == sums.tobytes()


def test_a_context_can_stop_observing_and_refuses_what_is_of_another_stage(
    tmp_path: Path,
) -> None:
    spec, _, file = built("experts", tmp_path)
    of = stage(file, spec)
    squares, over = _core.InputSquares(of), context(of)
    over.observe(squares)
    over.observe(None)
    run(over)
    assert not any(n for _, _, n, _ in squares.sums())
    with pytest.raises(ShapeError, match="another model"):
        over.observe(_core.InputSquares(stage(file, spec)))
