"""Blocks whose columns make up for each other's errors, by the second moments of inputs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.quant import FORMATS, TARGETS, dequantize, quantize

from pyflow import _core
from pyflow.errors import FormatError, ShapeError, UnsupportedError

pytestmark = pytest.mark.slow

Array = NDArray[np.float32]
BLOCKS = [name for name, form in TARGETS.items() if form.block > 1]
WIDTH, DAMPING = 2048, 0.01  # csrc/encode/feedback.h


def triangles(h: NDArray[np.float64]) -> Array:
    """As csrc/encode/feedback.h draws them: per group of columns the lower triangle, its rows by
    sixteen and filled up to a multiple of that."""
    packed = []
    for begin in range(0, len(h), WIDTH):
        group = h[begin : begin + WIDTH, begin : begin + WIDTH]
        for row in range(0, len(group), 16):
            packed.append(group[row : row + 16, : row + 16].ravel())
    return np.concatenate(packed).astype(np.float32)


def inputs(n_cols: int, seed: int = 0) -> NDArray[np.float64]:
    """Second moments of inputs a few directions of which are large."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3 * n_cols, 8)) * 4 @ rng.standard_normal((8, n_cols))
    x += rng.standard_normal(x.shape)
    return np.asarray(x.T @ x)


def rows(n_rows: int, n_cols: int) -> Array:
    return np.random.default_rng(7).standard_normal((n_rows, n_cols)).astype(np.float32)


def encoded(
    w: Array,
    type: str,
    feedback: _core.Feedback | None,
    pool: _core.ThreadPool | None = None,
    isa: str = "",
) -> tuple[NDArray[np.uint8], tuple[float, float, float, float]]:
    data = w.reshape(-1).view(np.uint8)
    return _core.Requantizer("F32", type, w.shape[-1], None, feedback, isa).run(data, 0, pool)


def error(w: Array, blocks: NDArray[np.uint8], type: str) -> float:
    return float(np.square(w.astype(np.float64) - dequantize(blocks, type)).sum())


def damped(h: NDArray[np.float64]) -> NDArray[np.float64]:
    h = h.copy()
    for begin in range(0, len(h), WIDTH):
        group = slice(begin, begin + WIDTH)
        h[group, :begin] = h[:begin, group] = 0
        h[group, group] += DAMPING * np.diag(h[group, group]).mean() * np.eye(len(h[group]))
    return h


@pytest.mark.parametrize("type", BLOCKS)
def test_the_error_at_the_output_is_less_and_as_told(type: str) -> None:
    w, h = rows(40, 768), inputs(768)
    feedback = _core.Feedback(triangles(h), 768)
    blocks, told = encoded(w, type, feedback)
    d = w.astype(np.float64) - dequantize(blocks, type)
    h = damped(h)
    squared = np.einsum("ri,ij,rj->", d, h, d)
    np.testing.assert_allclose(told[0], squared, rtol=2e-3)
    np.testing.assert_allclose(told[1], np.einsum("ri,i->", np.square(w, dtype=float), np.diag(h)))
    np.testing.assert_allclose(told[2:], (np.abs(d).sum(), np.abs(d).max()), rtol=1e-6)
    alone = w.astype(np.float64) - dequantize(quantize(w, type, np.diag(h)), type)
    assert squared < 0.6 * np.einsum("ri,ij,rj->", alone, h, alone)


@pytest.mark.parametrize("type", ["Q4_B32", "Q6_B64", "Q8_B64"])
def test_roundings_are_chosen_for_what_they_leave_to_others(type: str) -> None:
    """What is left is 0.54 to 0.57 of what nearest levels leave of even errors, L_kk^2 d^2 / 12 of
    weight k with its block's scale d; were every weight the nearest to what it is to be when its
    turn comes, and blocks encoded twice, 0.62 to 0.67."""
    n, block = 256, FORMATS[type].block
    w, h = rows(64, n), inputs(n)
    blocks, told = encoded(w, type, _core.Feedback(triangles(h), n))
    scales = blocks.reshape(len(w), n // block, -1)[..., :2].copy().view(np.float16)[..., 0]
    squares = np.diag(np.linalg.cholesky(damped(h))).reshape(-1, block) ** 2
    assert told[0] < 0.6 * (scales.astype(float) ** 2 / 12 * squares.sum(1)).sum()


@pytest.mark.parametrize("type", ["Q3_B32", "Q3H_NL", "Q6_B64"])
def test_blocks_are_encoded_in_the_light_of_all_others(type: str) -> None:
    """What a block costs, by what would be best for it where all others are as they are, is far
    less than what encoding that anew costs, for others have made up for it: by the first pass alone
    0.74 to 0.95 of it."""
    w, h = rows(32, 1024), inputs(1024)
    blocks, _ = encoded(w, type, _core.Feedback(triangles(h), 1024))
    values, h, n = dequantize(blocks, type), damped(h), FORMATS[type].block
    pull = (w - values).astype(np.float64) @ h
    costs = np.zeros(2)
    for begin in range(0, 1024, n):
        own = slice(begin, begin + n)
        inside = h[own, own]
        outside = pull[:, own] - (w - values)[:, own] @ inside
        best = (w[:, own] + np.linalg.solve(inside, outside.T).T).astype(np.float32)
        anew, _ = encoded(best, type, _core.Feedback(triangles(inside), n))
        for i, held in enumerate((values[:, own], dequantize(anew, type))):
            costs[i] += np.einsum("ri,ij,rj->", held - best, inside, held - best)
    assert costs[0] < 0.6 * costs[1]


@pytest.mark.parametrize("type", BLOCKS)
def test_columns_that_have_nothing_in_common_are_encoded_on_their_own(type: str) -> None:
    w = rows(8, 512)
    blocks, _ = encoded(w, type, _core.Feedback(triangles(np.eye(512)), 512))
    alone = error(w, quantize(w, type), type)
    assert 0.995 * alone < error(w, blocks, type) <= (1 + 1e-6) * alone  # more is searched for


@pytest.mark.parametrize("type", BLOCKS)
def test_no_row_loses_more_than_without_feedback(type: str) -> None:
    """Where inputs go together as neighbours in time do, what some rows' blocks make up for grew
    from one to the next, up to what a format can hold."""
    n, rng = 768, np.random.default_rng(3)
    h = 0.999 ** np.abs(np.arange(n)[:, None] - np.arange(n))
    w = np.empty((5, n), np.float32)
    w[0] = 0.37
    w[1] = 0.1 * rng.choice([-1, 1], n)
    w[2] = 0.03 * np.cumsum(rng.standard_normal(n))
    w[3] = rng.standard_t(2, n)
    w[4] = 1e-3 * rng.standard_normal(n)
    w[4, 100] = 50
    blocks, _ = encoded(w, type, _core.Feedback(triangles(h), n))
    h = damped(h)

    def lost(blocks: NDArray[np.uint8]) -> NDArray[np.float64]:
        d = w.astype(np.float64) - dequantize(blocks, type)
        return np.asarray(np.einsum("ri,ij,rj->r", d, h, d))

    alone = lost(quantize(w, type, np.diag(h)))
    assert (lost(blocks) <= alone * (1 + 1e-4) + 1e-9).all()


@pytest.mark.parametrize("type", ["Q4_K", "Q8_B64", "Q3H_K", "Q3H_NL", "IQ4_NL"])
def test_bytes_depend_on_the_weights_alone(type: str) -> None:
    w, moments = rows(70, 512), triangles(inputs(512))
    want, told = encoded(w, type, _core.Feedback(moments, 512))
    pool = _core.ThreadPool(3, False)
    assert encoded(w, type, _core.Feedback(moments, 512, pool), pool)[1] == told
    for isa in _core.runnable_isas():
        found, _ = encoded(w, type, _core.Feedback(moments, 512, None, isa), None, isa)
        assert found.tobytes() == want.tobytes()
    for begin, end in ((0, 1), (1, 33), (33, 70)):
        found, _ = encoded(w[begin:end], type, _core.Feedback(2 * moments, 512))
        assert found.tobytes() == want[begin:end].tobytes()


def test_groups_of_columns_have_nothing_to_do_with_each_other() -> None:
    n = WIDTH + 512
    w, h = rows(4, n), np.eye(n)
    h[WIDTH:, WIDTH:] = inputs(512)
    blocks, _ = encoded(w, "Q4_B64", _core.Feedback(triangles(h), n))
    per_group = WIDTH // 64 * FORMATS["Q4_B64"].block_bytes
    alone, _ = encoded(
        w[:, WIDTH:].copy(), "Q4_B64", _core.Feedback(triangles(h[WIDTH:, WIDTH:]), 512)
    )
    assert blocks[:, per_group:].tobytes() == alone.tobytes()
    own, first = w[:, :WIDTH], blocks[:, :per_group]
    assert error(own, first, "Q4_B64") == pytest.approx(
        error(own, quantize(own, "Q4_B64"), "Q4_B64"), rel=1e-4
    )


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("fill", [0.0, 1.0, -3e-7, 65504.0])
def test_blocks_of_one_value_stay_sane(type: str, fill: float) -> None:
    w = np.full((3, 256), fill, np.float32)
    w[1, 17] = -fill
    for h in (inputs(256), np.zeros((256, 256)), 1e-40 * np.eye(256), 9e29 * np.eye(256)):
        blocks, told = encoded(w, type, _core.Feedback(triangles(h), 256))
        values = dequantize(blocks, type)
        assert np.isfinite(values).all()
        assert np.isfinite(told).all()
        assert np.abs(values).max() <= 2.5 * abs(fill) + 2e-6  # the least scale by any code


@pytest.mark.parametrize(
    "h",
    [
        np.full((64, 64), np.nan),
        np.diag([1.0] * 63 + [np.inf]),
        np.diag([1.0] * 63 + [-1.0]),
        np.eye(64) + 2 * np.eye(64, k=-1),
        -np.eye(64),
        np.diag([-1.0, 1.0] * 32),
        3e38 * np.eye(64),
    ],
)
def test_a_matrix_that_is_not_positive_definite_is_rejected(h: NDArray[np.float64]) -> None:
    with pytest.raises(FormatError):
        _core.Feedback(triangles(h), 64)


def test_other_sizes_are_refused() -> None:
    assert _core.Feedback.size(32) == 256 + 512
    for columns in (0, -16, 8, 2**62):
        with pytest.raises(ShapeError, match=r"\b16\b"):
            _core.Feedback.size(columns)
    with pytest.raises(ShapeError, match=r"64 columns.* 2560 .* 3$"):
        _core.Feedback(np.zeros(3, np.float32), 64)
    feedback = _core.Feedback(triangles(np.eye(64)), 64)
    for columns, type in ((128, "Q4_B64"), (64, "F16")):
        with pytest.raises(ShapeError):
            encoded(rows(1, columns), type, feedback)
    w = rows(2, 64)
    w[1, 5] = np.inf
    with pytest.raises(UnsupportedError, match=r"row 1, column 5: .*Q4_B64"):
        encoded(w, "Q4_B64", feedback)
