"""Ranks measure themselves with real layers, and memory is what the model will take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

import pyflow
from pyflow import _core, formats
from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts, evaluate_split
from pyflow.cluster.planning.profile import N_ROWS, layer_costs, profile_rank, shared
from pyflow.cluster.wire.surveys import RankProfile
from pyflow.engine.loaded import plan
from pyflow.specs import build_spec

GIB = 2**30


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_layers_need_together_what_the_model_does(
    model_path: Callable[[str], Path], name: str, cache_type: pyflow.engine.context.CacheType
) -> None:
    checkpoint = formats.open(model_path(name))
    spec = build_spec(checkpoint)
    pool = _core.ThreadPool(1)
    costs, n_scratch = layer_costs(
        checkpoint, spec, pool, {"n_ctx": 2048, "n_seq_max": 4, "cache_type": cache_type}
    )
    whole = plan(model_path(name), n_ctx=2048, n_seq_max=4, cache_type=cache_type)
    alone = ClusterProfile((RankProfile(0, "here", (1.0,), 2**60),), {}, costs)
    assert alone.nbytes(range(spec.n_layers)) == whole.weights + whole.kv
    assert 0 < n_scratch <= whole.scratch
    assert sum(costs.relative) == pytest.approx(spec.n_layers)
    # Halves hold the tied matrix twice.
    half = spec.n_layers // 2
    parts = alone.nbytes(range(half)) + alone.nbytes(range(half, spec.n_layers))
    assert parts == whole.weights + whole.kv + costs.tied_nbytes


@pytest.mark.model
def test_a_rank_measures_layers_for_one_to_eight_rows(
    model_path: Callable[[str], Path],
) -> None:
    checkpoint = formats.open(model_path("smollm2"))
    spec = build_spec(checkpoint)
    pool = _core.ThreadPool(1)
    found = profile_rank(3, 2, checkpoint, spec, pool)
    profile = found.profile
    assert profile.rank == 3
    assert len(profile.layer_ms) == N_ROWS
    assert all(0 < a <= b < 100 for a, b in pairwise(profile.layer_ms))
    assert profile.head_ms > 0
    assert found.read_bytes_per_s > 0
    costs, n_scratch = layer_costs(checkpoint, spec, pool, {"n_ctx": 512})
    (alone,) = shared([profile], n_scratch)
    split = evaluate_split(ClusterProfile((alone,), {}, costs), [range(spec.n_layers)])
    assert split.token_ms == pytest.approx(30 * profile.layer_ms[0] + profile.head_ms, rel=1e-3)


def test_ranks_of_one_host_share_its_memory() -> None:
    ranks = [
        RankProfile(0, "b", (1.0,), 10 * GIB),
        RankProfile(1, "a", (1.0,), 8 * GIB),
        RankProfile(2, "b", (1.0,), 9 * GIB),
    ]
    found = shared(ranks, GIB)
    assert [profile.rank for profile in found] == [0, 1, 2]
    most = [profile.max_nbytes / GIB for profile in found]
    assert most == pytest.approx([0.95 * 9 / 2 - 1, 0.95 * 8 - 1, 0.95 * 9 / 2 - 1])
    assert [p.max_nbytes for p in shared(ranks, 100 * GIB)] == [0, 0, 0]
    # Who guesses has no room for layers, and takes none from the others.
    ranks[0] = replace(ranks[0], max_nbytes=0)
    most = [profile.max_nbytes / GIB for profile in shared(ranks, GIB)]
    assert most == pytest.approx([0, 0.95 * 8 - 1, 0.95 * 9 - 1])
    # A device has memory of its own, which its ranks share.
    ranks[1:] = [replace(rank, host="b", device="gpu 0 (A card)") for rank in ranks[1:]]
    ranks[0] = replace(ranks[0], max_nbytes=10 * GIB)
    most = [profile.max_nbytes / GIB for profile in shared(ranks, GIB)]
    assert most == pytest.approx([0.95 * 10 - 1, 0.95 * 8 / 2 - 1, 0.95 * 8 / 2 - 1])


def test_layers_of_one_model_may_differ() -> None:
    costs = LayerCosts((10, 30), 5, 7, row_nbytes=4, tied_nbytes=5, relative=(0.5, 1.5))
    pipeline = ClusterProfile((RankProfile(0, "here", (2.0,), 100, head_ms=1),), {}, costs)
    assert evaluate_split(pipeline, [range(2)]).token_ms == pytest.approx(0.5 * 2 + 1.5 * 2 + 1)
