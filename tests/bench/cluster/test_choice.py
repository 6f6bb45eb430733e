"""The automatic choice of strategy, against the best of all that were tried on long texts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts
from pyflow.cluster.planning.predict import Drafts, candidates, choose, predictions
from pyflow.cluster.planning.simulation import cluster_times, simulate
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.wire.surveys import RankProfile

pytestmark = pytest.mark.slow

Bench = Callable[[str], ModuleType]
# No choice may be slower than this, of the best one.
LEAST = 0.97


def of_the_best(pair: Any, node: Any, link: Any, n_nodes: int) -> float:
    """The speed of what is chosen over that of the best candidate.

    Texts and luck are others than those that the choice was made by. Candidates have layers in
    equal parts, and PipeInfer's drafts a node of their own.
    """
    layer_ms = tuple(1e3 * node.layers_s(pair.target, 1, n) for n in range(1, 10))
    ranks = tuple(RankProfile(i, f"node {i}", layer_ms, 10**15) for i in range(n_nodes))
    n_layers = pair.target.n_layers
    costs = LayerCosts((1,) * n_layers, 0, 0, 4 * pair.target.n_embd)
    cluster = ClusterProfile(ranks, {(i, i + 1): link for i in range(n_nodes - 1)}, costs)
    draft_ms = 1e3 * node.layers_s(pair.draft, pair.draft.n_layers, 1)

    def speed(strategy: Strategy, ranges: Any, n_tokens: int, n_texts: int) -> float:
        times = cluster_times(cluster, ranges, draft_ms=draft_ms)
        seconds = [
            1 / simulate(times, strategy, pair.alpha, n_tokens=n_tokens, seed=seed).tokens_per_s
            for seed in range(100, 100 + n_texts)
        ]
        return n_texts / sum(seconds)

    def even(name: str) -> list[range]:
        n = n_nodes - name.startswith("pipeinfer")
        cuts = [n_layers * i // n for i in range(n + 1)]
        parts = [range(a, b) for a, b in pairwise(cuts)]
        return [range(0)] * (n_nodes - n) + parts

    tried = [(strategy, even(name)) for name, strategy in candidates(n_nodes)]
    best = sorted(tried, key=lambda one: speed(*one, 64, 1))[-4:]
    chosen = choose(predictions(cluster, Drafts(draft_ms, pair.alpha)))
    found = speed(chosen.strategy, chosen.split.ranges, 256, 4)
    return found / max(speed(*one, 256, 4) for one in best)


@pytest.mark.parametrize(
    ("name", "pair", "n_nodes"),
    [("C", 5, 2), ("C", 4, 3), ("C", 0, 5), ("A", 3, 2), ("A", 2, 4), ("C", 5, 4)],
)
def test_the_choice_is_nearly_the_best(bench: Bench, name: str, pair: int, n_nodes: int) -> None:
    models = bench("cluster/clusters")
    node, link = models.CLUSTERS[name].nodes[0], models.CLUSTERS[name].link
    assert of_the_best(models.PAIRS[pair], node, link, n_nodes) >= LEAST


@pytest.mark.accept
@pytest.mark.parametrize("pair", range(6))
@pytest.mark.parametrize(("name", "most"), [("A", 8), ("C", 32)])
def test_the_choice_is_nearly_the_best_for_every_number_of_nodes(
    bench: Bench, name: str, most: int, pair: int
) -> None:
    models = bench("cluster/clusters")
    node, link = models.CLUSTERS[name].nodes[0], models.CLUSTERS[name].link
    found = {n: of_the_best(models.PAIRS[pair], node, link, n) for n in range(2, most + 1)}
    assert min(found.values()) >= LEAST, found
