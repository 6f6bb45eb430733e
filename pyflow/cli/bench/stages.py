"""What `pyflow bench --pipeline` measures: several stages, reading and writing one text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.batch.runner import Span
from pyflow.cli.bench.timing import Test, setting, speeds
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.cluster.model import N_BATCH
from pyflow.cluster.mpi.pipeline import MpiPipeline
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel

_GREEDY = SamplingParams(temperature=0, seed=0)


@dataclass(frozen=True, slots=True)
class _Sample:
    """One run of a test: its nanoseconds, and what it sent."""

    ns: int
    stats: PipelineStats
    messages: int
    """Messages between all ranks."""
    hop_nbytes: int
    """Bytes from one stage to the next."""


def measure(
    model: PipelinedModel,
    drafter: str | None,
    tests: Sequence[Test],
    repetitions: int,
    text: Sequence[int] | None,
) -> Iterator[dict[str, Any]]:
    """A result for each test. drafter: the name of the method that drafts. text: the tokens to
    continue; None: random ones."""
    isa = _core.cpu_info()["isa"]
    is_mpi = isinstance(model.pipeline, MpiPipeline)
    for test in tests:
        started = datetime.now(UTC)
        tokens = _tokens(model, test, text)
        samples = [_sample(model, test, tokens) for _ in range(repetitions + 1)][1:]
        stats = PipelineStats.total(sample.stats for sample in samples)
        n_tokens = repetitions * (test.n_gen or test.n_prompt)
        yield {
            **setting(
                model.files,
                isa,
                n_threads=model.n_threads,
                numa="off",
                n_batch=N_BATCH,
                cache_type=model.cache_type,
            ),
            **speeds(test, started, [sample.ns for sample in samples]),
            "strategy": "+".join(dict.fromkeys(name.split()[0] for name in stats.strategies)),
            "drafter": drafter,
            "transport": "mpi" if is_mpi else "threads",
            "layers": [len(held) for held in model.layers],
            "resident_nbytes": model.pipeline.resident_nbytes,
            **stats.as_dict(),
            "messages_per_token": sum(s.messages for s in samples) / n_tokens if is_mpi else None,
            "hop_nbytes_per_token": sum(s.hop_nbytes for s in samples) / n_tokens
            if is_mpi
            else None,
        }


def show(
    model: PipelinedModel,
    drafter: str | None,
    tests: Sequence[Test],
    repetitions: int,
    text: str | None,
    output: str,
) -> None:
    """Measures, and prints a table or JSON."""
    tokens = None if text is None else model.tokenizer.encode(text)
    results: list[dict[str, Any]] = []
    with progress("measuring") as told:
        for i, result in enumerate(measure(model, drafter, tests, repetitions, tokens), 1):
            results.append(result)
            told(i, len(tests))
    if output == "json":
        print_json(results, indent=2)
    else:
        click.echo(table(results))


def table(results: Sequence[dict[str, Any]]) -> str:
    """In Markdown."""
    head = ["model", "strategy", "drafts by", "layers", "MiB resident", "threads", "test", "t/s"]
    head += ["tokens/run", "accepted", "cancelled", "messages/token", "bytes/token and hop"]
    rows = [
        [
            r["model_type"],
            r["strategy"],
            r["drafter"] or "",
            "+".join(map(str, r["layers"])),
            "+".join("-" if n is None else f"{n / 2**20:.0f}" for n in r["resident_nbytes"]),
            str(r["n_threads"]),
            Test(r["n_depth"], n_prompt=r["n_prompt"], n_gen=r["n_gen"]).name,
            f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}",
            f"{r['tokens_per_run']:.2f}" if r["n_gen"] else "",
            f"{r['acceptance_rate']:.0%}" if r["decided"] else "",
            f"{r['cancelled'] / r['runs']:.0%}" if r["n_gen"] else "",
            "" if r["messages_per_token"] is None else f"{r['messages_per_token']:.2f}",
            "" if r["hop_nbytes_per_token"] is None else f"{r['hop_nbytes_per_token']:,.0f}",
        ]
        for r in results
    ]
    return markdown_table(head, rows, left={"model", "strategy", "drafts by"})


def _tokens(model: PipelinedModel, test: Test, text: Sequence[int] | None) -> list[int]:
    """The tokens to read: as the test, or before it, at least one."""
    n = test.n_prompt or max(1, test.n_depth)
    if text is None:
        rng = np.random.default_rng(1)  # the same every time
        drawn: list[int] = rng.integers(0, model.spec.n_vocab, n).tolist()
        return drawn
    if len(text) < n:
        raise click.UsageError(
            f"-f: expected {n} tokens or more for -p and -d, found {len(text)}; take a longer "
            "text, or -p 0 and -d 0, which continue all of it"
        )
    return list(text[:n]) if test.n_prompt or test.n_depth else list(text)


def _sample(model: PipelinedModel, test: Test, tokens: Sequence[int]) -> _Sample:
    """Reads tokens and writes more; the test ends, or begins, with the first token drawn."""
    runner, user, n_left = model.runner, object(), test.n_gen + 1
    # No token ends the text, so that all samples have as many tokens.
    span = Span(tokens=tokens, n_predict=n_left, sampling=_GREEDY, replay=False)
    sent: list[NDArray[np.int64]] = []

    def progress(done: int, total: int) -> None:
        if done == total:  # nothing has been sent for later tokens
            sent.append(_sent(model))

    runner.take(user, progress)
    try:
        sent.append(_sent(model))
        times = [time.monotonic_ns()]
        runner.begin(0, span)
        while n_left > 0:
            n_left -= sum(len(outcome.draws) for outcome in runner.step())
            if len(times) == 1:
                times.append(time.monotonic_ns())
        runner.end(0)  # waits for what is on its way
        times.append(time.monotonic_ns())
        sent.append(_sent(model))
        stats = runner.stats(0)
    finally:
        runner.leave(user)
    i = int(test.n_gen > 0)
    frames, beside, nbytes = (sent[i + 1] - sent[i]).tolist()
    n_runs, n_rows = stats.runs, stats.rows
    if test.n_prompt:
        n_runs, n_rows = math.ceil(test.n_prompt / N_BATCH), test.n_prompt
    n_hops = model.n_stages - int(bool(model.layers[0]))
    if not model.layers[0]:  # rank 0 sends only tokens
        nbytes += n_rows * 4 * model.spec.n_embd
    return _Sample(times[i + 1] - times[i], stats, n_hops * frames + n_runs + beside, nbytes)


def _sent(model: PipelinedModel) -> NDArray[np.int64]:
    """What rank 0 has sent: frames, which each take all hops, other messages, and bytes of frames.

    Drafts that another rank has sent to it count as other messages.
    """
    if not isinstance(model.pipeline, MpiPipeline):
        return np.zeros(3, np.int64)
    pipeline = model.pipeline
    messages, nbytes = pipeline.sent.messages, pipeline.sent.nbytes
    beside = messages["Cancel"] + messages["DraftRequest"] + pipeline.n_drafted
    return np.array([messages["Frame"], beside, nbytes["Frame"]])
