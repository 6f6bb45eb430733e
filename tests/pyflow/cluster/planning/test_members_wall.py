"""Stages whose members wait as slow machines and networks would, beside their simulation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from oracle import Oracle

import pyflow
from pyflow import SamplingParams, _core
from pyflow.cluster.mpi.layers import even
from pyflow.cluster.planning.members import Gathers, Sharing, grouped, sharing_of
from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts
from pyflow.cluster.planning.simulation import cluster_times, simulate
from pyflow.cluster.run.driver import DraftThread, write
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.stage import Membership, ModelStage
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.run.threads import ThreadPipeline
from pyflow.cluster.wire.messages import Run
from pyflow.cluster.wire.surveys import Group, Link, RankProfile

GREEDY = SamplingParams(temperature=0, seed=1)
SIZES: Any = {"n_ctx": 512, "n_seq_max": 6, "n_batch": 8}
N_TOKENS, DRAFT_S = 40, 0.004
GATHERS = Gathers({(i, i + 1): Link(1e-3, 1e7) for i in range(3)}, 1e-4)
# ms of a layer of four ranks, the second of which is slow.
LAYER_MS = (24.0, 42.0, 24.0, 24.0)


@dataclass(frozen=True)
class Slow:
    """What a member takes for a run of n rows, besides what it really computes."""

    n_layers: int
    own_ms: float
    ranks: tuple[int, ...]
    sharing: Sharing

    def seconds(self, n_rows: int) -> float:
        rounds = GATHERS.ms(self.ranks, self.sharing.n_rounds, n_rows * self.sharing.layer_nbytes)
        return self.n_layers * (self.own_ms * (1 + 0.1 * (n_rows - 1)) + rounds) / 1e3


class SlowMember(ModelStage):
    slow: Slow

    def _compute(self, run: Run, hidden: Any) -> Any:
        time.sleep(self.slow.seconds(run.n_rows))  # before: rounds then wait for the slowest
        return super()._compute(run, hidden)


def pipeline_of(model: pyflow.Model, groups: list[Group], sharing: Sharing) -> ThreadPipeline:
    leaders, followers = [], []
    for group, held in zip(groups, even(model.spec.n_layers, len(groups)), strict=True):
        parts = sharing.parts(group.speeds)
        for link in _core.Link.threads(len(group.ranks)):
            member = SlowMember(
                model.checkpoint,
                model.spec,
                layers=held,
                pool=_core.ThreadPool(1),
                sampling=GREEDY,
                place=Membership(link, group.speeds),
                **SIZES,
            )
            own_ms = LAYER_MS[group.ranks[link.number]] * parts[link.number]
            member.slow = Slow(len(held), own_ms, group.ranks, sharing)
            (followers if link.number else leaders).append(member)
    return ThreadPipeline(leaders, followers)


def measured(model: pyflow.Model, pipeline: ThreadPipeline, strategy: Strategy) -> float:
    """Tokens/s after the prompt, if all drafts are right."""
    prompt = model.tokenizer.encode("Once upon a time")
    plain = model.generate(prompt, n_predict=N_TOKENS, sampling=GREEDY).tokens
    pipeline.reset(GREEDY)
    job = Job(
        prompt=prompt,
        n_predict=N_TOKENS,
        n_ctx=SIZES["n_ctx"],
        n_batch=8,
        n_partitions=5,
        epoch=pipeline.epoch,
    )
    drafter = Oracle([*prompt, *plain], 1.0, model.spec.n_vocab, draft_s=DRAFT_S)
    found: list[int] = []
    times: list[float] = []
    with DraftThread(drafter, pipeline) as channel:
        for tokens in write(Scheduler(job, strategy), pipeline, channel):
            found += tokens
            times += [time.monotonic()] * len(tokens)
    assert found == plain
    return (len(times) - 1) / (times[-1] - times[0])


@pytest.mark.accept
@pytest.mark.parametrize("strategy", [iterative(), speculative(3), pipeinfer(1, 4)], ids=str)
@pytest.mark.parametrize("speeds", [(1000, 1000), (1000, 571)], ids=["alike", "unequal"])
def test_groups_are_as_fast_as_simulated_within_a_tenth(
    tiny_path: Path, strategy: Strategy, speeds: tuple[int, int]
) -> None:
    with pyflow.load(tiny_path, n_threads=1) as model:
        sharing = sharing_of(model.checkpoint, model.spec, model.pool)
        assert sharing is not None
        groups = [Group((0, 1), speeds), Group((2, 3), (1000, 1000))]
        profiles = tuple(
            RankProfile(i, f"host{i}", tuple(ms * (1 + 0.1 * n) for n in range(8)), 1 << 60)
            for i, ms in enumerate(LAYER_MS)
        )
        instant = {(i, i + 1): Link(0.0, 1e18) for i in range(3)}
        costs = LayerCosts((1,) * model.spec.n_layers, 0, 0, 1)
        cluster = grouped(ClusterProfile(profiles, instant, costs), groups, sharing, GATHERS)
        times = cluster_times(cluster, even(model.spec.n_layers, 2), draft_ms=1e3 * DRAFT_S)
        expected = simulate(times, strategy, 1.0, n_tokens=N_TOKENS).tokens_per_s
        with pipeline_of(model, groups, sharing) as pipeline:
            found = measured(model, pipeline, strategy)
    assert found == pytest.approx(expected, rel=0.1)
