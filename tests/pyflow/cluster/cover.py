"""Cases that stand for all: any two values of different factors meet in one of them.

Imports nothing of the tests, for ranks run it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, Protocol

from oracle import Oracle

from pyflow import SamplingParams, _core
from pyflow.cluster.run.drafts import PipelineDrafter, by_lookup
from pyflow.cluster.run.driver import DraftThread, Pipeline, write
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.stage import Sizes
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative

MODES: dict[str, Callable[[int], Strategy]] = {
    "iterative": lambda _: iterative(),
    "speculative": speculative,
    "pipeinfer": lambda n: pipeinfer(n, 6),
    "redrafting": lambda n: pipeinfer(n, 6, redrafts=True),
    "no cancellation": lambda n: pipeinfer(n, 6, cancels=False),
    "no continuous speculation": lambda n: pipeinfer(n, 6, continuous=False),
    "no multibuffering": lambda n: pipeinfer(n, 6, partitioned=False),
    "no asynchrony": lambda n: pipeinfer(n, 6, asynchronous=False),
}
LOOKUP = "lookup"
"""Guesses by what the text said before; the others are right with a given probability."""
# Models by what they cost.
FACTORS: dict[str, Sequence[Any]] = {
    "model": ("tiny", "smollm2", "gemma3"),
    "mode": tuple(MODES),
    "guesses": ("0.0", "0.3", "0.7", "1.0", LOOKUP),
    "n_rows": (1, 4),
    "is_greedy": (True, False),
    "n_ranks": (1, 2, 3, 5),
    "transport": ("threads", "mpi"),
    "prompt": (0, 1, 2),
}
PROMPTS = [
    "Repeat: red green blue red green blue red green blue red",
    "The history of the Roman empire begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob |",
    "Q: Why is the sky blue?\nA:",
    "Once upon a time, in a village between two rivers, there lived an old clockmaker who",
    '{"id": 1, "name": "one"}\n{"id": 2, "name": "two"}\n{"id": 3,',
    "To be, or not to be, that is the",
]
# Of every job; a prompt goes in chunks of n_batch.
SIZES: Sizes = {"n_ctx": 2048, "n_seq_max": 6, "n_batch": 128}


@dataclass(frozen=True, slots=True)
class Case:
    """A value of each factor. n_rows: tokens of a run of guesses, at most."""

    model: str
    mode: str
    guesses: str
    n_rows: int
    is_greedy: bool
    n_ranks: int
    transport: str
    prompt: int

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))

    @property
    def strategy(self) -> Strategy:
        return MODES[self.mode](self.n_rows)


def pairwise(factors: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows in which any two values of different factors meet; the same rows every time.

    Each begins with a pair that has not met, and takes of every other factor the value that meets
    the most of those left; of several values each in turn, but of the first factor's the first.
    """
    names = list(factors)
    left = {
        (a, x, b, y): None
        for a, b in combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
    }

    def gain(row: dict[str, Any], name: str, value: Any) -> int:
        met = row | {name: value}
        return sum(pair in left for pair in _pairs(met, names) if name in (pair[0], pair[2]))

    rows = []
    while left:
        a, x, b, y = next(iter(left))
        row = {a: x, b: y}
        for name in names:
            if name not in row:
                first = len(rows) % len(factors[name]) if name != names[0] else 0
                values = [*factors[name][first:], *factors[name][:first]]
                row[name] = max(values, key=lambda value, name=name: gain(row, name, value))
        for pair in _pairs(row, names):
            left.pop(pair, None)
        rows.append({name: row[name] for name in names})
    return rows


def _pairs(row: dict[str, Any], names: Sequence[str]) -> Iterable[tuple[str, Any, str, Any]]:
    return ((a, row[a], b, row[b]) for a, b in combinations(names, 2) if a in row and b in row)


def cases(**factors: Sequence[Any]) -> list[Case]:
    """A cover of all factors, with other values for those that are given."""
    return [Case(**row) for row in pairwise(FACTORS | factors)]


class Encodes(Protocol):
    def encode(self, text: str) -> list[int]: ...


def prompt_tokens(model: str, tokenizer: Encodes, number: int) -> list[int]:
    """Where a model has a long window, the prompt is longer."""
    tokens = tokenizer.encode(PROMPTS[number])
    if model == "gemma3":  # of 512
        tokens = tokens[:1] + (tokens[1:] * 512)[: 530 + 10 * number]
    return tokens


def sampling(is_greedy: bool, stops: Iterable[int]) -> SamplingParams:
    """Such that no text ends by itself, and one that is drawn depends on all before it."""
    bias = dict.fromkeys(stops, -1e9)
    if is_greedy:
        return SamplingParams(temperature=0, logit_bias=bias, seed=1)
    return SamplingParams(
        temperature=1.2, repeat_penalty=1.2, presence_penalty=0.2, logit_bias=bias, seed=5
    )


def check(
    case: Case,
    pipeline: Pipeline,
    how: SamplingParams,
    *,
    prompt: Sequence[int],
    plain: Sequence[int],
    n_vocab: int,
    window: int | None = None,
    drafter: PipelineDrafter | None = None,
) -> Scheduler:
    """One job; its tokens must be those of plain decoding. drafter: in place of the case's."""
    assert pipeline.reset(how) == 0
    n_ctx = SIZES["n_ctx"]
    assert n_ctx is not None
    job = Job(
        prompt=prompt,
        n_predict=len(plain),
        n_ctx=n_ctx,
        n_batch=SIZES["n_batch"],
        n_partitions=SIZES["n_seq_max"] - 1,
        window=window,
        epoch=pipeline.epoch,
    )
    scheduler = Scheduler(job, case.strategy)
    own = drafter
    if drafter is None and case.guesses == LOOKUP:
        drafter = by_lookup(n_ctx=n_ctx, n_vocab=n_vocab)
    elif drafter is None:
        drafter = Oracle([*prompt, *plain], float(case.guesses), n_vocab)
    with closing(drafter), DraftThread(drafter, pipeline) as channel:
        found = [token for some in write(scheduler, pipeline, channel) for token in some]
    assert found == list(plain), f"{case}: expected {plain}, found {found}"
    assert scheduler.in_flight == 0, case
    counts = scheduler.counts
    if case.strategy.n_draft and case.guesses == "1.0":
        # A drafting model reads pieces as they come: regimes, where they differ, may tell a draft.
        is_sure = own is None or _core.cpu_info()["prefill"] == "decode"
        assert counts.decided > 10, f"{case}: {counts}"
        assert counts.accepted >= (1.0 if is_sure else 0.8) * counts.decided, f"{case}: {counts}"
    if case.guesses == "0.0":
        assert counts.accepted == 0, f"{case}: {counts}"
    return scheduler
