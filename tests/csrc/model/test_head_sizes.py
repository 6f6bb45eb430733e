"""Heads of any size run as the definition says, in cells of every type."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import UnsupportedError
from pyflow.specs.model_spec import ModelSpec

from .block_reference import Reference
from .test_blocks import POOL, TOKENS, Logits, N, run, same, stage
from .tiny_models import PARTIAL, Draft, around, attention, heads_of_odd_sizes, write

KINDS = ["f16", "q8_0"]
TABLES: list[str] = _core.cpu_info()["tables"]


def context(of: _core.Stage, kind: str, n_ctx: int = 70) -> _core.Context:
    return _core.Context(of, n_ctx=n_ctx, n_seq_max=2, n_batch=64, cache_type=kind)


def in_q8_0(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values (n, heads, dims) as blocks of 32 with a common scale in F16 hold them."""
    n_dims = x.shape[-1]
    blocks = np.pad(x, [(0, 0), (0, 0), (0, -n_dims % 32)]).reshape(*x.shape[:2], -1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / 127
    rounded = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    kept: NDArray[np.float64] = rounded * scales.astype(np.float16)
    return kept.reshape(*x.shape[:2], -1)[..., :n_dims]


def checked(spec: ModelSpec, draft: Draft, file: _core.Checkpoint, kind: str) -> None:
    """Every table gives the same bits, by rows of any batch, and they are right."""
    stored = in_q8_0 if kind == "q8_0" else np.asarray
    want = Reference(spec, draft.tensors, 70, stored).logits(TOKENS)
    results: list[Logits] = []
    with pytest.MonkeyPatch.context() as patch:
        for i, table in enumerate(TABLES):
            patch.setenv("PYFLOW_ISA", table)
            native = context(stage(file, spec), kind)
            cuts = [0, N] if i == 0 else [0, i + 1, i + 7, N]
            rows = [run(native, a, b) for a, b in itertools.pairwise(cuts)]
            results.append(np.concatenate(rows))
    assert all(same(result, results[0]) for result in results)
    # Values between two of eight bits may be rounded to the other one.
    step = 5e-4 if kind == "f16" else 2e-2
    np.testing.assert_allclose(results[0], want, rtol=0, atol=step * want.std() * spec.n_layers)


@settings(max_examples=25, deadline=None)
@example(head_dim=14, value_dim=1, n_kv=1, group=1, window=5, kind="q8_0")
@given(
    head_dim=st.integers(1, 130),
    value_dim=st.integers(1, 130),
    n_kv=st.integers(1, 3),
    group=st.integers(1, 4),
    window=st.sampled_from([0, 0, 5]),
    kind=st.sampled_from(KINDS),
)
def test_heads_of_any_size_are_right_on_every_table(
    head_dim: int, value_dim: int, n_kv: int, group: int, window: int, kind: str
) -> None:
    draft = Draft(head_dim)
    rope = 1 if head_dim >= 2 * len(PARTIAL.inv_freq) else None
    sizes = {"head_dim": head_dim, "value_dim": value_dim, "scale": head_dim**-0.5}
    block = attention(draft, "", group * n_kv, n_kv, rope=rope, window=window, **sizes)
    spec = draft.spec(around(draft, "", block))
    with tempfile.TemporaryDirectory() as folder:
        checked(spec, draft, write(Path(folder) / "tiny.safetensors", draft), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_may_have_heads_of_different_sizes(kind: str, tmp_path: Path) -> None:
    draft = Draft()
    spec = heads_of_odd_sizes(draft)
    checked(spec, draft, write(tmp_path / "tiny.safetensors", draft), kind)


def one_layer(tmp_path: Path, **sizes: int) -> _core.Stage:
    draft = Draft()
    spec = draft.spec(around(draft, "", attention(draft, "", rope=1, **sizes)))
    return stage(write(tmp_path / "tiny.safetensors", draft), spec)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_odd_heads_move_to_other_positions(kind: str, tmp_path: Path) -> None:
    """Keys of one layer depend on token and position alone, and are rounded once more."""
    native = one_layer(tmp_path, head_dim=20, value_dim=72)
    moved, still = context(native, kind), context(native, kind)
    at = np.arange(20, dtype=np.int32)
    for of, first in ((moved, 4), (still, 0)):
        of.forward(TOKENS[:20], at + first, 0, [])
    moved.seq_add(0, 0, -1, -4)
    moved.seq_cp(0, 1, 0, -1)
    a, b = run(moved, 20), run(still, 20)
    np.testing.assert_allclose(a, b, rtol=0, atol=(1e-3 if kind == "f16" else 1e-2) * b.std())
    rest = moved.forward(TOKENS[20:], np.arange(20, N, dtype=np.int32), 1, np.arange(N - 20))
    assert same(rest, a)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_odd_heads_are_restored_bit_for_bit(kind: str, tmp_path: Path) -> None:
    native = one_layer(tmp_path, head_dim=20, value_dim=72)
    saved, restored = context(native, kind), context(native, kind)
    run(saved, 0, 19)
    restored.restore_cells(0, 0, 19, [saved.read_cells(0, 0, 0, 19)])
    assert same(run(restored, 19), run(saved, 19))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_tree_are_those_of_a_text(kind: str, tmp_path: Path) -> None:
    native = one_layer(tmp_path, head_dim=11, value_dim=33)
    tree, plain = context(native, kind), context(native, kind)
    run(tree, 0, 8)
    want = run(plain, 0, 12)[8:]
    tokens = [TOKENS[8], TOKENS[9], 5, TOKENS[10], TOKENS[11]]
    at, parents = [8, 9, 9, 10, 11], [-1, 0, 0, 1, 3]
    got = tree.forward(tokens, at, 0, [0, 1, 3, 4], parents=parents)
    assert same(got, want)


def test_cells_take_whole_vectors_and_blocks(tmp_path: Path) -> None:
    native = one_layer(tmp_path, head_dim=36, value_dim=7)
    n_ctx, n_kv = 64, 2
    sizes = {"n_ctx": n_ctx, "n_seq_max": 1, "n_batch": 4}
    f16, f16_scratch = _core.Context.memory(native, cache_type="f16", **sizes)
    q8_0, q8_0_scratch = _core.Context.memory(native, cache_type="q8_0", **sizes)
    assert f16 == n_ctx * n_kv * 2 * (48 + 16)
    assert q8_0 == n_ctx * n_kv * 34 * (2 + 1)
    assert f16_scratch < q8_0_scratch
    whole = one_layer(tmp_path, head_dim=48)
    assert _core.Context.memory(whole, cache_type="f16", **sizes)[0] == n_ctx * n_kv * 4 * 48


@pytest.mark.parametrize("role", ["head_dim", "value_dim"])
def test_heads_too_large_are_refused_before_weights_are_read(role: str, tmp_path: Path) -> None:
    draft = Draft()
    spec = draft.spec(around(draft, "", attention(draft, "", rope=None)))
    file = write(tmp_path / "tiny.safetensors", draft)
    block = replace(spec.layers[0][1], **{role: 16385})
    large = replace(spec, layers=((spec.layers[0][0], block, spec.layers[0][2]),))
    with pytest.raises(UnsupportedError, match=r"\b16384\b.*\b16385\b"):
        _core.Stage(file, large.stage(), POOL, load=False)
