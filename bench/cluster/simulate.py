"""Strategies of a pipeline in virtual time, each with its best numbers.

The scheduler and its messages are the real ones; the model is a made-up language, whose drafter is
right as often as the paper says of each pair: at the same positions for all strategies, for there
the luck of a text is large. A strategy's numbers are chosen on a short text, and its fastest few
then measured on all texts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from clusters import Cluster, Layout, Node, Pair, even, exact
from oracle import Oracle

from pyflow.cluster.planning.predict import candidates, flights
from pyflow.cluster.planning.toy_model import N_VOCAB, Language, LanguageStage
from pyflow.cluster.planning.virtual import Trace, VirtualPipeline
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy, pipeinfer

N_PROMPT = 128
N_ROWS_PROMPT = 16  # of a run of the prompt, which is so spread over the stages
N_PARTITIONS = 8
N_SPARE = 512  # cells for guesses

# To choose a strategy's numbers: tokens of one text, and how many choices are then measured.
_N_SHORT, _N_FINAL = 96, 3
# PipeInfer, with chains that are kept and as published.
POLICIES = ("pipeinfer", "pipeinfer, redrafting")
FEWEST = ", on the fewest machines"
ABLATIONS = {
    "no cancellation": {"cancels": False},
    "no continuous speculation": {"continuous": False},
    "no multibuffering": {"partitioned": False},
    "no asynchrony": {"asynchronous": False},
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy, by the name of what it is the best of, and machines to run it on."""

    name: str
    strategy: Strategy
    layout: Layout


@dataclass(frozen=True, slots=True)
class Texts:
    """What is written: so many texts of n_tokens."""

    n_tokens: int
    n_seeds: int

    @property
    def n_cells(self) -> int:
        return N_PROMPT + self.n_tokens + N_SPARE


def simulate(
    pair: Pair,
    layout: Layout,
    strategy: Strategy,
    n_tokens: int,
    seed: int,
    *,
    n_prompt: int = N_PROMPT,
) -> tuple[Trace, Scheduler]:
    """One text of n_tokens; at which positions the drafter is right depends on the seed alone."""
    n_stages = len(layout.stages)
    language = Language(n_stages, seed)
    n_ctx = n_prompt + n_tokens + N_SPARE
    job = Job(
        prompt=list(range(n_prompt)),
        n_predict=n_tokens,
        n_ctx=n_ctx,
        n_batch=N_ROWS_PROMPT,
        n_partitions=N_PARTITIONS,
    )
    scheduler = Scheduler(job, strategy)
    # The scheduler counts cells; a stage that had no more would count them at every run.
    stages = [LanguageStage(language, i, n_ctx * (1 + N_PARTITIONS)) for i in range(n_stages)]
    text = language.write(job.prompt, n_tokens)
    drafter = Oracle([*job.prompt, *text], pair.alpha, N_VOCAB, seed=seed)
    trace = VirtualPipeline(scheduler, stages, layout.times(pair), drafter).run()
    if trace.tokens != text:
        raise AssertionError(f"{pair.name}: the tokens are not those of one place")
    return trace, scheduler


def layouts(
    cluster: Cluster, n_nodes: int, pair: Pair, n_cells: int, *, apart: bool
) -> Iterator[Layout]:
    """Ways to place layers on the first n_nodes, all of them. apart: one of them only drafts."""
    nodes = cluster.nodes[:n_nodes]
    if not apart:
        yield from _splits(cluster, nodes, pair, n_cells, None)
        return
    # Where machines differ, the slowest comes last, and may be the one to spare.
    for i in dict.fromkeys([0, n_nodes - 1] if cluster.is_uneven else [0]):
        if pair.draft.nbytes(pair.draft.n_layers, n_cells) <= nodes[i].max_nbytes:
            yield from _splits(cluster, (*nodes[:i], *nodes[i + 1 :]), pair, n_cells, nodes[i])


def _splits(
    cluster: Cluster, stages: tuple[Node, ...], pair: Pair, n_cells: int, apart: Node | None
) -> Iterator[Layout]:
    way = even(stages, pair, cluster.link, apart)
    held = (pair.target.nbytes(n, n_cells) for _, n in way.stages)
    if all(nbytes <= node.max_nbytes for nbytes, node in zip(held, stages, strict=True)):
        yield way
    if cluster.is_uneven:
        split = "throughput"
        yield exact(stages, pair, cluster.link, apart, objective=split, n_cells=n_cells)


def choices(cluster: Cluster, n_nodes: int, pair: Pair, n_cells: int) -> Iterator[Choice]:
    """All that is tried on a cluster; PipeInfer wants a machine for its drafts."""
    nodes = cluster.nodes[:n_nodes]
    ways = [(layout, "") for layout in layouts(cluster, n_nodes, pair, n_cells, apart=False)]
    if cluster.is_uneven:
        few = exact(nodes, pair, cluster.link, objective="latency", n_cells=n_cells)
        ways.append((few, FEWEST))
    if n_nodes > 1:
        ways += [(one, "") for one in layouts(cluster, n_nodes, pair, n_cells, apart=True)]
    for layout, where in ways:
        for name, strategy in candidates(n_nodes):
            if name.startswith("pipeinfer") == (layout.apart is not None):
                yield Choice(name + where, strategy, layout)


def ablations(cluster: Cluster, n_nodes: int, pair: Pair, n_cells: int) -> Iterator[Choice]:
    """PipeInfer, and without each of its parts; a larger draft may make up for what is missing."""
    (layout,) = layouts(cluster, n_nodes, pair, n_cells, apart=True)
    for n_rows, n_flight in product((1, 2, 3, 4, 6, 8), flights(n_nodes)):
        for base in POLICIES:
            whole = pipeinfer(n_rows, n_flight, redrafts=base != POLICIES[0])
            yield Choice(base, whole, layout)
            for name, off in ABLATIONS.items():
                yield Choice(f"{base}, {name}", replace(whole, **off), layout)


def best(pair: Pair, tried: Sequence[Choice], texts: Texts) -> dict[str, dict[str, Any]]:
    """By the names of choices: what the fastest one of each name takes."""
    n_short = min(_N_SHORT, texts.n_tokens)
    speeds: dict[str, list[tuple[float, int]]] = {}
    for i, choice in enumerate(tried):
        trace, _ = simulate(pair, choice.layout, choice.strategy, n_short, 0)
        speeds.setdefault(choice.name, []).append((trace.tokens_per_s, i))
    found: dict[str, dict[str, Any]] = {}
    for name, some in speeds.items():
        finals = [tried[i] for _, i in sorted(some, reverse=True)[:_N_FINAL]]
        measured = [measure(pair, choice, texts) for choice in finals]
        found[name] = max(measured, key=lambda one: one["tokens_per_s"])
    return found


def measure(pair: Pair, choice: Choice, texts: Texts) -> dict[str, Any]:
    """Medians over the texts; seconds, bytes, tokens per second."""
    runs = [
        simulate(pair, choice.layout, choice.strategy, texts.n_tokens, seed)
        for seed in range(texts.n_seeds)
    ]
    traces, counts = [t for t, _ in runs], [s.counts for _, s in runs]
    held = choice.layout.nbytes(pair, texts.n_cells, drafts=choice.strategy.n_draft > 0)
    speeds = [t.tokens_per_s for t in traces]
    gaps = [sorted(t.gaps_s) for t in traces]
    middle = statistics.median
    return {
        "tokens_per_s": middle(speeds),
        "tokens_per_s_range": [min(speeds), max(speeds)],
        "prompt_s": middle(t.prompt_s for t in traces),
        "ttft_s": middle(t.ttft_s for t in traces),
        "gap_s": middle(sum(g) / len(g) for g in gaps),
        "gap_p95_s": middle(g[int(0.95 * len(g))] for g in gaps),
        "nbytes_mean": sum(held) / len(held),
        "nbytes_max": max(held),
        "draft_s": choice.layout.times(pair).draft_s,
        "utilisation": middle(statistics.mean(t.utilisation) for t in traces),
        "utilisation_draft": middle(t.draft_busy_s / t.end_s for t in traces),
        "accepted": middle(c.accepted / max(1, c.decided) for c in counts),
        "rows_per_token": middle((c.rows - N_PROMPT) / texts.n_tokens for c in counts),
        "n_draft": choice.strategy.n_draft,
        "n_flight": choice.strategy.n_flight,
        "split": choice.layout.split,
        "layers": [n for _, n in choice.layout.stages],
    }
