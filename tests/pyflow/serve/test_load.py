"""The load that `pyflow bench serve` makes, and what it measures."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from pyflow.cli.bench.plot import plot
from pyflow.cli.bench.serve import command
from pyflow.serve.load.client import Sample
from pyflow.serve.load.mixes import MIXES, request
from pyflow.serve.load.run import measured, percentile


@pytest.mark.parametrize("mix", [*MIXES])
def test_a_mix_asks_the_same_for_the_same_seed(mix: str) -> None:
    made = [request(mix, index, n_predict=9, seed=1) for index in range(9)]
    assert made == [request(mix, index, n_predict=9, seed=1) for index in range(9)]
    assert made != [request(mix, index, n_predict=9, seed=2) for index in range(9)]
    assert json.dumps(made)


def test_measures_are_those_of_the_times() -> None:
    samples = [
        Sample("chat", 10.0, [10.5, 10.6, 10.9], 11.0, n_prompt=7, n_tokens=5),
        Sample("chat", 11.0, [11.2, 11.4], 12.0, n_prompt=3, n_tokens=5),
        Sample("chat", 11.0, ended=11.5, error="status 429"),
    ]
    found = measured(samples, {"ttft": 300})
    assert (found["n_requests"], found["n_failed"]) == (3, 1)
    assert found["tokens_per_second"] == pytest.approx(5)
    assert found["goodput_per_second"] == pytest.approx(0.5)
    assert found["ttft_ms"]["p99"] == pytest.approx(500)
    assert found["itl_ms"]["p50"] == pytest.approx(200)
    assert found["tpot_ms"]["p50"] == pytest.approx(50)
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([], 99) == 0


def test_servers_that_are_not_there_are_named() -> None:
    found = CliRunner().invoke(command, ["http://127.0.0.1:9/v1"])
    assert "http://127.0.0.1:9/v1/models" in str(found.exception)
    found = CliRunner().invoke(command, ["ftp://x"])
    assert "ftp://x" in str(found.exception)


def test_a_chart_is_xml() -> None:
    text = plot({"a < b": {"one": [(1, 2.0), (4, 8.5)], "two": [(1, 3.0)]}}, "users")
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_a_server_under_load_answers_all(server: Any) -> None:
    from pyflow.serve.load.client import Target
    from pyflow.serve.load.run import Load, run

    target = Target.parse(server.serving.url)
    loads = [
        Load(n_users=3, n_requests=4, n_predict=6),
        Load(rate=50.0, n_requests=3, n_predict=6),
    ]
    for load in loads:
        samples = asyncio.run(run(target, load))
        assert [sample.error for sample in samples] == [""] * load.n_requests
        assert all(0 < sample.n_tokens <= load.n_predict for sample in samples)
