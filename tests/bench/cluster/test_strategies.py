"""Simulated clusters: formulas, splits, choices, and what the command leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Bench = Callable[[str], ModuleType]


def test_few_rows_take_the_time_of_reading_and_many_that_of_computing(bench: Bench) -> None:
    models = bench("cluster/clusters")
    weights = models.Weights(8e9, 10, 1000, 500, "Q4_K_M")
    machine = models.node(2, 1e9, 4, 2e9, 10, gb=100)
    read_s = 0.8e9 * 4.85 / 8 / (2 * 1e9 * 8 * 0.7)
    row_s = 0.8e9 / (4 * 2e9 * 10)
    assert read_s > 4 * row_s
    for n_rows in (1, 2, 4):
        assert machine.layers_s(weights, 3, n_rows) == pytest.approx(3 * read_s)
    assert machine.layers_s(weights, 3, 16) == pytest.approx(3 * 16 * row_s)
    assert machine.slower(2).layers_s(weights, 3, 16) == pytest.approx(6 * 16 * row_s)
    assert weights.nbytes(3, 7) == pytest.approx(3 * (0.8e9 * 4.85 / 8 + 7 * 500 * 2 * 2))


@pytest.mark.parametrize("n", [1, 2, 13, 64])
def test_an_even_split_has_all_layers_and_the_draft_lies_where_it_is_made(
    bench: Bench, n: int
) -> None:
    models = bench("cluster/clusters")
    pair, cluster = models.PAIRS[1], models.CLUSTERS["C"]
    layout = models.even(cluster.nodes[:n], pair, cluster.link)
    layers = [count for _, count in layout.stages]
    assert sum(layers) == pair.target.n_layers
    assert max(layers) - min(layers) <= 1
    alone = layout.nbytes(pair, 100, drafts=False)
    draft = pair.draft.nbytes(pair.draft.n_layers, 100)
    assert sum(alone) == pytest.approx(pair.target.nbytes(80, 100))
    assert layout.nbytes(pair, 100) == [alone[0] + draft, *alone[1:]]
    apart = models.even(cluster.nodes[:n], pair, cluster.link, cluster.nodes[0])
    assert apart.nbytes(pair, 100) == [*alone, draft]
    assert layout.times(pair).draft_s == apart.times(pair).draft_s


def test_unequal_machines_get_what_they_can_do_and_hold(bench: Bench) -> None:
    models, simulate = bench("cluster/clusters"), bench("cluster/simulate")
    cluster, n_cells = models.CLUSTERS["B"], 1000
    for pair in models.PAIRS:
        found = list(simulate.layouts(cluster, 13, pair, n_cells, apart=True))
        exact = [layout for layout in found if layout.split == "for throughput"]
        assert exact
        for layout in exact:
            target, stages = pair.target, layout.stages
            assert sum(n for _, n in stages) == target.n_layers
            assert all(target.nbytes(n, n_cells) <= node.max_nbytes for node, n in stages)
            slow = max(node.layers_s(target, n, 1) for node, n in stages)
            others = [other for other in found if other.apart == layout.apart]
            for other in others:
                assert slow <= max(node.layers_s(target, n, 1) for node, n in other.stages) + 1e-6


def test_on_eight_nodes_pipeinfer_is_ahead_and_its_first_token_as_early(bench: Bench) -> None:
    models, simulate = bench("cluster/clusters"), bench("cluster/simulate")
    texts = simulate.Texts(64, 1)
    for i in (0, 2):
        pair, cluster = models.PAIRS[i], models.CLUSTERS["A"]
        found = simulate.best(pair, list(simulate.choices(cluster, 8, pair, texts.n_cells)), texts)
        assert set(found) == {"iterative", "speculative", *simulate.POLICIES}
        base, guess, pipe = (found[n] for n in ("iterative", "speculative", "pipeinfer"))
        assert pipe["tokens_per_s"] > 1.2 * max(base["tokens_per_s"], guess["tokens_per_s"])
        assert pipe["ttft_s"] < 1.15 * base["ttft_s"] < guess["ttft_s"]
        assert pipe["nbytes_mean"] == pytest.approx(guess["nbytes_mean"])
        assert base["nbytes_mean"] < pipe["nbytes_mean"]
        assert guess["utilisation"] < pipe["utilisation"] < 1
        (layout,) = simulate.layouts(cluster, 8, pair, 0, apart=False)
        each = sum(stage(1) for stage in layout.times(pair).stage_s)
        assert base["gap_s"] == pytest.approx(base["gap_p95_s"])
        assert each <= base["gap_s"] < 1.05 * each  # and the links


def test_without_a_part_the_tokens_are_the_same_and_come_later(bench: Bench) -> None:
    models, simulate = bench("cluster/clusters"), bench("cluster/simulate")
    pair, cluster, texts = models.PAIRS[0], models.CLUSTERS["C"], simulate.Texts(48, 1)
    wanted = [
        choice
        for choice in simulate.ablations(cluster, 8, pair, texts.n_cells)
        if (choice.strategy.n_rows, choice.strategy.n_flight) == (2, 8)
    ]
    found = simulate.best(pair, wanted, texts)  # which compares all tokens
    names = {f"pipeinfer, {name}" for name in simulate.ABLATIONS}
    assert names < set(found)
    for name in names:
        assert found[name]["tokens_per_s"] <= found["pipeinfer"]["tokens_per_s"]


@pytest.fixture
def command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Runs the command on one small cluster, and returns its points by pair."""

    def run(*arguments: str) -> dict[str, Any]:
        given = ["--out", str(tmp_path), "--clusters", "A", "--nodes", "2", *arguments]
        monkeypatch.setattr("sys.argv", ["cluster.py", *given, "--tokens", "8", "--seeds", "1"])
        assert bench("cluster/strategies").main() == 0
        rows = json.loads((tmp_path / "cluster.json").read_text())
        return {row["key"]["pair"]: row["found"] for row in rows}

    return run


def test_the_command_draws_what_it_found_and_goes_on_where_it_was_stopped(
    bench: Bench,
    command: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = command()
    assert len(first) == 6
    assert (tmp_path / "constrained.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "tables.md").read_text()
    assert table.strip() == capsys.readouterr().out.strip()
    assert table.count("| A | Goliath") == 4
    points = tmp_path / "points.jsonl"
    points.write_text("".join(points.read_text().splitlines(keepends=True)[:-1]) + '{"key": {"ki')
    left: list[str] = []
    compute = bench("cluster/strategies").Point.compute

    def watched(point: Any) -> Any:
        left.append(point.pair.name)
        return compute(point)

    monkeypatch.setattr(bench("cluster/strategies").Point, "compute", watched)
    assert command() == first
    assert left == [list(first)[-1]]


def test_charts_of_many_nodes_and_of_ablations(bench: Bench, tmp_path: Path) -> None:
    simulate = bench("cluster/simulate")
    one = {
        **{name: 1.0 for name in ("tokens_per_s", "ttft_s", "prompt_s", "gap_s", "gap_p95_s")},
        **{name: 2.0 for name in ("nbytes_mean", "nbytes_max", "utilisation")},
        **{"n_draft": 1, "n_flight": 2, "draft_s": 0.25, "accepted": 1 / 3},
    }
    whole = list(simulate.POLICIES)
    parts = [f"{name}, {part}" for name in whole for part in simulate.ABLATIONS]
    key = {"cluster": "C", "pair": "large + small", "alpha": 0.5}
    rows = [
        {"key": key | {"kind": "nodes", "nodes": n}, "found": dict.fromkeys(names, one)}
        for n, names in (
            (1, ["iterative", "speculative"]),
            (8, ["iterative", "speculative", *whole]),
        )
    ]
    rows.append(
        {"key": key | {"kind": "ablations", "nodes": 8}, "found": dict.fromkeys(whole + parts, one)}
    )
    bench("cluster/figures").draw(rows, tmp_path)
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    lines = {"speed", "first_token", "latency", "memory", "speed_per_memory", "utilisation"}
    assert drawn == lines | {"ablations"}
    table = bench("cluster/tables").as_markdown(rows)
    line = "| C | large + small (0.50) | 8 | 1.00 | 1.00 (1) | 1.00 (1, 2) | 1.00 | 1.00 | 1.33 |"
    assert line in table
    assert "continuous speculation, large + small" in table
