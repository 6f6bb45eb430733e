"""What matrices are multiplied by is added up as it was, expert by expert, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import ShapeError
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import Ref, TensorRef

from ..model.block_reference import Array, Reference
from ..model.test_blocks import TOKENS, built, context, one_by_one, run, same, stage
from ..model.tiny_models import TINY, Draft

Sums = dict[tuple[str, int], tuple[int, NDArray[np.float64]]]


class Recorder(Reference):
    """By tensor and first row: rows that were multiplied, and the sums of their squares."""

    def __init__(self, spec: ModelSpec, draft: Draft) -> None:
        super().__init__(spec, draft.tensors, 70)
        self.sums: Sums = {}

    def linear(self, ref: Ref, x: Array, bias: Ref | None = None) -> Array:
        source = ref if isinstance(ref, TensorRef) else TensorRef(ref)
        first = source.inputs[0] if source.inputs else 0
        key = source.name, first + (source.rows[0][0] if source.rows else 0)
        rows = x.reshape(-1, x.shape[-1])
        n, sums = self.sums.get(key, (0, np.zeros(x.shape[-1])))
        self.sums[key] = n + len(rows), sums + np.square(rows).sum(0)
        return super().linear(ref, x, bias)


def observed(of: _core.Stage, by_row: bool = False) -> tuple[Sums, NDArray[np.float32]]:
    inputs, over = _core.InputMoments(of), context(of)
    over.observe(inputs)
    logits = one_by_one(over) if by_row else run(over)
    return {(name, row): (n, sums) for name, row, n, sums in inputs.sums()}, logits


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


def test_moments_are_those_of_the_definition_and_shared_by_what_has_one_input(
    tmp_path: Path,
) -> None:
    spec, draft, file = built("everything", tmp_path)
    reference = Products(spec, draft)
    reference.logits(TOKENS)
    found = moments_of(stage(file, spec))
    matrices = [name for names, _, _ in found for name in names]
    # Models 7 to 9 have experts, shared ones among them, and 12 has latents too.
    missing = reference.products.keys() - set(matrices)
    assert all(name.split("/")[0] in {"7", "8", "9", "12"} for name, _ in missing)
    assert len(matrices) == len(reference.products) - len(missing)
    # Queries and keys, gate and up; where they are of one tensor, values with the former.
    shared = [{name for name, _ in names} for names, _, _ in found if len(names) == 3]
    assert shared
    assert all(len(tensors) == 1 for tensors in shared)
    for names, n_cols, sums in found:
        for name in names:
            want = reference.products[name]
            assert n_cols == len(want)
            got = unpacked(sums, n_cols)
            lower = np.tril_indices(n_cols)
            np.testing.assert_allclose(got[lower], want[lower], rtol=0.02, atol=4e-3 * want.max())


@pytest.mark.slow
def test_moments_of_many_rows_alike_do_not_drift(tmp_path: Path) -> None:
    """Each of 65,536 equal terms would be rounded alike: one f32 for all is off by up to 9e-4."""
    spec, _, file = built("slopes", tmp_path)
    of = stage(file, spec)
    inputs, over = _core.InputMoments(of, moments=True), context(of)
    over.observe(inputs)
    tokens, at = np.full(64, 5, np.int32), np.arange(64, dtype=np.int32)
    for times in (1, 1023):
        for _ in range(times):
            over.clear()
            over.forward(tokens, at, 0, at[:0])
        _, n_cols, sums = inputs.moments()[0]  # of the first layer's queries and keys
        found = unpacked(sums, n_cols).astype(np.float64)
        if times == 1:
            one = found
    np.testing.assert_allclose(found, 1024 * one, rtol=0, atol=3e-5 * found.max())


def test_values_are_observed_by_what_attention_mixes_where_moments_are(tmp_path: Path) -> None:
    spec, draft, file = built("everything", tmp_path)
    reference = Products(spec, draft)
    reference.logits(TOKENS)
    assert reference.mixed
    of = stage(file, spec)
    inputs, over = _core.InputMoments(of, moments=True), context(of)
    over.observe(inputs)
    assert same(run(over), run(context(of)))
    found = {(name, row): (n, sums) for name, row, n, sums in inputs.sums()}
    for key, (n, sums) in reference.mixed.items():
        assert found[key][0] == n
        np.testing.assert_allclose(found[key][1], sums, rtol=0.02, atol=2e-3 * sums.max())


def test_moments_do_not_depend_on_threads_or_on_how_rows_are_batched(tmp_path: Path) -> None:
    spec, _, file = built("everything", tmp_path)
    want = moments_of(stage(file, spec))
    assert want
    for n_threads, by_row in ((1, False), (3, False), (2, True)):
        found = moments_of(stage(file, spec, _core.ThreadPool(n_threads, False)), by_row)
        assert [names for names, _, _ in found] == [names for names, _, _ in want]
        for (_, _, a), (_, _, b) in zip(found, want, strict=True):
            assert a.tobytes() == b.tobytes()


def test_moments_are_measured_only_where_they_are_asked_for(tmp_path: Path) -> None:
    spec, _, file = built("everything", tmp_path)
    of = stage(file, spec)
    inputs, over = _core.InputMoments(of), context(of)
    over.observe(inputs)
    run(over)
    assert inputs.moments() == []


class Products(Recorder):
    """By tensor and first row: the sums of products of columns, of whole sixteens of them."""

    def __init__(self, spec: ModelSpec, draft: Draft) -> None:
        super().__init__(spec, draft)
        self.products: dict[tuple[str, int], NDArray[np.float64]] = {}
        self.mixed: Sums = {}

    def linear(self, ref: Ref, x: Array, bias: Ref | None = None) -> Array:
        source = ref if isinstance(ref, TensorRef) else TensorRef(ref)
        if x.shape[-1] % 16 == 0:
            rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
            key = source.name, source.rows[0][0] if source.rows else 0
            self.products[key] = self.products.get(key, 0.0) + rows.T @ rows
        return super().linear(ref, x, bias)

    def attended(self, b: Attention, p: Array, x: Array) -> None:
        """Values whose tensor is their own stand for the inputs as each query head mixes them, of
        sixteen rows in 64."""
        q, v = (r if isinstance(r, TensorRef) else TensorRef(r) for r in (b.q, b.v))
        if q.name == v.name:
            return
        mixes = np.einsum("hij,jc->ihc", p, x)[np.arange(len(x)) % 64 < 16]
        key = v.name, v.rows[0][0] if v.rows else 0
        mixes = mixes.reshape(-1, x.shape[-1])
        self.products[key] = mixes.T @ mixes
        self.mixed[key] = len(mixes), np.square(mixes).sum(0)


def moments_of(
    of: _core.Stage, by_row: bool = False
) -> list[tuple[list[tuple[str, int]], int, NDArray[np.float32]]]:
    inputs, over = _core.InputMoments(of, moments=True), context(of)
    over.observe(inputs)
    if by_row:
        one_by_one(over)
    else:
        run(over)
    return inputs.moments()


def unpacked(sums: NDArray[np.float32], n_cols: int) -> NDArray[np.float32]:
    """A square of moments, its lower triangle filled."""
    square, at = np.zeros((n_cols, n_cols), np.float32), 0
    for row in range(0, n_cols, 16):
        size = 16 * (row + 16)
        square[row : row + 16, : row + 16] = sums[at : at + size].reshape(16, -1)
        at += size
    return square


def test_a_context_can_stop_observing_and_refuses_what_is_of_another_stage(
    tmp_path: Path,
) -> None:
    spec, _, file = built("experts", tmp_path)
    of = stage(file, spec)
    inputs, over = _core.InputMoments(of), context(of)
    over.observe(inputs)
    over.observe(None)
    run(over)
    assert not any(n for _, _, n, _ in inputs.sums())
    with pytest.raises(ShapeError):
        over.observe(_core.InputMoments(stage(file, spec)))
    over.observe(inputs)  # rows are added one by one, so what came before is not missed
    with pytest.raises(ShapeError, match=rf"\b{len(TOKENS)}\b"):
        over.observe(_core.InputMoments(of, moments=True))
    over.clear()
    moments = _core.InputMoments(of, moments=True)
    over.observe(moments)
    over.observe(moments)
    other = context(of)
    with pytest.raises(ShapeError):
        other.observe(moments)
    over.observe(None)
    other.observe(moments)
    del other
    over.observe(moments)
