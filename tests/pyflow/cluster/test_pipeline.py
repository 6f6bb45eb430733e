"""A pipeline writes what one place writes: real models, all strategies, right and wrong guesses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyflow import SamplingParams
from pyflow.cluster.drafts import Guesser, LookupGuesser, ModelGuesser
from pyflow.cluster.head import Drafting, write
from pyflow.cluster.job import Job
from pyflow.cluster.oracle import Oracle
from pyflow.cluster.scheduler import Scheduler
from pyflow.cluster.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.threads import ThreadPipeline

from .conftest import Rig

pytestmark = pytest.mark.model

N_PREDICT = 64
STRATEGIES = {
    "iterative": iterative(),
    "speculative": speculative(4),
    "pipeinfer 1": pipeinfer(1, 6),
    "pipeinfer 4": pipeinfer(4, 6),
    "paper": pipeinfer(2, 6, redrafts=True),
    "no cancellation": pipeinfer(2, 6, cancels=False),
    "no continuous speculation": pipeinfer(2, 6, continuous=False),
    "no multibuffering": pipeinfer(2, 6, partitioned=False),
    "no asynchrony": pipeinfer(2, 6, asynchronous=False),
}
STAGES = [1, 2, 3, 5]
SAMPLINGS = [
    SamplingParams(temperature=0, seed=1),
    SamplingParams(temperature=1.2, repeat_penalty=1.2, presence_penalty=0.2, seed=5),
]
PROMPTS = [
    "Repeat: red green blue red green blue red green blue red",
    "The history of the Roman empire begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
]


def oracle(alpha: float) -> Callable[[Rig, SamplingParams, list[int]], Guesser]:
    return lambda rig, _, text: Oracle(text, alpha, rig.model.spec.n_vocab)


GUESSERS: dict[str, Callable[[Rig, SamplingParams, list[int]], Guesser]] = {
    "always wrong": oracle(0.0),
    "half right": oracle(0.5),
    "mostly right": oracle(0.8),
    "always right": oracle(1.0),
    "lookup": lambda _rig, _sampling, _text: LookupGuesser(),
    "itself": lambda rig, sampling, text: ModelGuesser(rig.model, sampling, len(text) + 16),
}


def check(
    rig: Rig,
    prompt: list[int],
    strategy: Strategy,
    n_stages: int,
    sampling: SamplingParams,
    guesser: str,
    n_predict: int = N_PREDICT,
) -> Scheduler:
    """One job on threads; its tokens are those of plain decoding, and all cells come back."""
    plain = rig.model.generate(prompt, n_predict=n_predict, sampling=sampling)
    stages, stops = rig.stages(n_stages, n_stages > 1), rig.model.tokenizer.stop_ids
    n_ctx = rig.sizes["n_ctx"]
    assert n_ctx is not None
    job = Job(
        prompt=prompt,
        n_predict=n_predict,
        n_ctx=n_ctx,
        n_batch=rig.sizes["n_batch"],
        n_partitions=rig.sizes["n_seq_max"] - 1,
        stops=frozenset(stops),
    )
    scheduler = Scheduler(job, strategy)
    guesses = GUESSERS[guesser](rig, sampling, prompt + plain.tokens)
    with ThreadPipeline(stages) as pipeline, Drafting(guesses, pipeline) as drafting:
        pipeline.reset(sampling)
        tokens = [t for some in write(scheduler, pipeline, drafting) for t in some]
        assert len(tokens) == plain.timings.predicted_n
        assert tokens[: len(plain.tokens)] == plain.tokens
        assert stops.issuperset(tokens[len(plain.tokens) :])
        assert pipeline.reset(sampling, keep=scheduler.n_past) == scheduler.n_past
    guesses.close()
    assert scheduler.in_flight == 0
    if rig.model.name.lower().startswith("smollm2"):  # without windows
        assert [stage.n_free for stage in stages] == [n_ctx - scheduler.n_past] * n_stages
    return scheduler


# Every pair of strategy and number of stages, every other factor with each of them.
CASES = [
    (strategy, n, (i + j) % 2, list(GUESSERS)[(i + 2 * j) % len(GUESSERS)], (i + j) % 3)
    for i, strategy in enumerate(STRATEGIES)
    for j, n in enumerate(STAGES)
]


@pytest.mark.parametrize(("strategy", "n_stages", "sampling", "guesser", "prompt"), CASES)
def test_a_pipeline_writes_what_one_place_writes(
    rigs: Callable[[str], Rig],
    strategy: str,
    n_stages: int,
    sampling: int,
    guesser: str,
    prompt: int,
) -> None:
    rig = rigs("smollm2")
    tokens = rig.model.tokenizer.encode(PROMPTS[prompt])
    scheduler = check(rig, tokens, STRATEGIES[strategy], n_stages, SAMPLINGS[sampling], guesser)
    if guesser == "always right" and STRATEGIES[strategy].n_draft:
        assert scheduler.counts.accepted == scheduler.counts.decided > 10
    if guesser == "always wrong":
        assert scheduler.counts.accepted == 0


@pytest.mark.parametrize(
    ("strategy", "n_stages", "guesser"),
    [
        ("iterative", 2, "lookup"),
        ("pipeinfer 4", 3, "half right"),
        ("paper", 5, "mostly right"),
        ("no cancellation", 2, "always wrong"),
    ],
)
def test_windows_hold_what_guesses_would_have_driven_out(
    rigs: Callable[[str], Rig], strategy: str, n_stages: int, guesser: str
) -> None:
    rig = rigs("gemma3")
    prompt = (rig.model.tokenizer.encode(" ".join(PROMPTS)) * 12)[:560]
    check(rig, prompt, STRATEGIES[strategy], n_stages, SAMPLINGS[1], guesser, n_predict=40)
