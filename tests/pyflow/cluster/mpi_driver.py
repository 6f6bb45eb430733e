"""What every rank of mpi/test_pipeline.py runs.

usage: mpiexec -n N python mpi_driver.py SCENARIO MODEL LAYERS OUT

Rank 0 checks tokens, and every rank leaves what it has sent in the folder OUT. A scenario with
"@rank" lets that rank do wrong.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, cast

from mpi4py import MPI
from oracle import Oracle

import pyflow
from pyflow import PyflowError, SamplingParams, _core
from pyflow.cluster.model import over_ranks
from pyflow.cluster.mpi import endpoint
from pyflow.cluster.mpi.endpoint import Traffic
from pyflow.cluster.mpi.pipeline import MpiPipeline, serve
from pyflow.cluster.run.drafts import MethodDrafter, PipelineDrafter
from pyflow.cluster.run.driver import DraftThread, write
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.stage import ModelStage, Sizes
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.wire.messages import Frame, Result
from pyflow.engine.model_files import ModelFiles
from pyflow.generate.any_model import AnyModel
from pyflow.generate.session import ChatSession
from pyflow.speculate.drafters.lookahead import Lookahead

N_PREDICT = 24
SIZES: Sizes = {"n_ctx": 256, "n_seq_max": 6, "n_batch": 8}
STRATEGIES = [iterative(), speculative(4), pipeinfer(1, 6), pipeinfer(4, 6)]
SAMPLINGS = [
    SamplingParams(temperature=0, seed=1),
    SamplingParams(temperature=1.2, repeat_penalty=1.2, presence_penalty=0.2, seed=5),
]
TEXT = "The history of the Roman empire begins with"


class Jobs:
    """One after the other over the same pipeline, with oracles that are right half of the time."""

    def __init__(self, model: pyflow.Model, pipeline: MpiPipeline) -> None:
        self.model, self.pipeline = model, pipeline
        self.plain = cache(self._plain)

    def _plain(self, prompt: tuple[int, ...], sampling: int) -> list[int]:
        drawn = self.model.generate(prompt, n_predict=N_PREDICT, sampling=SAMPLINGS[sampling])
        assert len(drawn.tokens) == N_PREDICT, "the test wants a text that does not end"
        return drawn.tokens

    def run(
        self,
        prompt: Sequence[int],
        strategy: Strategy,
        sampling: int,
        *,
        keep: int = 0,
        n_wanted: int = N_PREDICT,
        drafter: PipelineDrafter | None = None,
    ) -> Scheduler:
        """Compares a job with plain decoding; reads only n_wanted of its runs' tokens."""
        plain = self.plain(tuple(prompt), sampling)
        assert self.pipeline.reset(SAMPLINGS[sampling], keep=keep) == keep
        job = Job(
            prompt=prompt,
            n_predict=N_PREDICT,
            n_ctx=256,
            n_past=keep,
            n_batch=8,
            n_partitions=5,
            epoch=self.pipeline.epoch,
        )
        scheduler = Scheduler(job, strategy)
        drafter = drafter or Oracle([*prompt, *plain], 0.5, self.model.spec.n_vocab)
        with DraftThread(drafter, self.pipeline) as channel:
            written = write(scheduler, self.pipeline, channel)
            found = [token for some in islice(written, n_wanted) for token in some]
            assert next(written, None) is None or n_wanted < N_PREDICT
        assert found == plain[: len(found)], (strategy, sampling, found, plain)
        assert len(found) == N_PREDICT or n_wanted < N_PREDICT
        return scheduler


def jobs(model: pyflow.Model, pipeline: MpiPipeline) -> None:
    """A chat; then one that is given up; then others."""
    run, prompt = Jobs(model, pipeline).run, model.tokenizer.encode(TEXT)
    done = run(prompt, STRATEGIES[3], 1)
    text, keep = done.text, done.n_past
    assert keep == len(text) - 1
    longer = [*text, *model.tokenizer.encode(". After that")]
    done = run(longer, STRATEGIES[2], 1, keep=keep)
    run(longer, STRATEGIES[3], 0, keep=keep, n_wanted=3)
    run(longer, STRATEGIES[3], 1, keep=keep)
    run(longer, STRATEGIES[1], 0, n_wanted=1)
    run(prompt, STRATEGIES[0], 0)


def asking(model: pyflow.Model, pipeline: MpiPipeline) -> None:
    """Rows that ask the model something travel beside those of the text."""
    run, prompt = Jobs(model, pipeline).run, model.tokenizer.encode(TEXT)
    method = Lookahead(window=2, ngram=3, guesses=4)
    for strategy in (speculative(2), pipeinfer(2, 4)):
        for sampling in (0, 1):
            drafter = MethodDrafter(method, 12, n_ctx=256, n_vocab=model.spec.n_vocab)
            counts = run(prompt, strategy, sampling, drafter=drafter).counts
            assert counts.explored >= 3 * method.n_asked, counts


def one_job(model: pyflow.Model, pipeline: MpiPipeline) -> None:
    """Token by token."""
    Jobs(model, pipeline).run(model.tokenizer.encode(TEXT), iterative(), 0)


def forgotten(model: pyflow.Model, pipeline: MpiPipeline) -> None:
    """One stage has kept less than the others: all go on from there."""
    run, prompt = Jobs(model, pipeline).run, model.tokenizer.encode(TEXT)
    assert len(prompt) > 7
    run(prompt, STRATEGIES[3], 0)
    assert pipeline.reset(SAMPLINGS[0], keep=7) == 5
    run(prompt, STRATEGIES[3], 0, keep=5)


class Template:
    """Messages as they are, each with an end."""

    def encode(self, messages: Sequence[dict[str, str]], **_: Any) -> list[int]:
        return [token for m in messages for token in [*m["content"].encode(), 1, 2, 3]]


def chat(path: Path, ranges: list[range]) -> Traffic:
    """A tiny model whose prompts have an arithmetic of their own, asked by turns and by text."""
    files, template = ModelFiles(path, quantize="q8_0"), cast("Any", Template())

    def answers(model: AnyModel) -> list[list[int]]:
        known = {model.tokenizer.encode(letter)[-1] for letter in "abcdefgijklmnop "}
        bias = {t: -math.inf for t in range(model.spec.n_vocab) if t not in known}
        sampling = SamplingParams(temperature=1, seed=3, logit_bias=bias)
        how: Any = {"sampling": sampling, "n_predict": 12}
        with ChatSession(model, template=template, **how) as session:
            asks = partial(session.ask, "one"), partial(session.ask, "two"), session.regenerate
            written = [turn.completion.tokens for turn in (ask() for ask in asks) if [*turn]]
        return [*written, model.generate([*range(40)], **how).tokens]

    with pyflow.load(path, n_threads=1, quantize="q8_0") as model:
        assert model.stage.prefill == "bf16"
        plain = answers(model)
    assert [len(each) for each in plain] == 4 * [12]
    with over_ranks(files, strategy=iterative(), layers=ranges, n_ctx=256) as pipelined:
        assert answers(pipelined) == plain
        return cast("MpiPipeline", pipelined.pipeline).sent


def frames(pipeline: MpiPipeline) -> None:
    """A job that nobody checks, for what goes wrong."""
    pipeline.reset(SAMPLINGS[0])
    job = Job(prompt=range(1, 20), n_predict=8, n_ctx=256, n_batch=8, epoch=pipeline.epoch)
    for _ in write(Scheduler(job, iterative()), pipeline):
        pass


class Raises(ModelStage):
    """Fails at its second frame."""

    n_frames = 0

    def handle(self, frame: Frame) -> Frame | Result | None:
        self.n_frames += 1
        if self.n_frames == 2:
            raise ZeroDivisionError("what a stage may raise " + 5000 * "ö")
        return super().handle(frame)


class Forgets(ModelStage):
    """Keeps five positions at most."""

    def reset(self, sampling: SamplingParams, *, keep: int = 0, **more: Any) -> int:
        return super().reset(sampling, keep=min(keep, 5), **more)


STAGES = {"raise": Raises, "forgets": Forgets}
CHECKED = {
    "jobs": jobs,
    "asking": asking,
    "one job": one_job,
    "forgets": forgotten,
    "isa": one_job,
}


def corrupt(encode: Callable[[Any], bytearray]) -> Callable[[Any], bytearray]:
    """Damages what is computed, on its way."""

    def damaged(message: Any) -> bytearray:
        data = encode(message)
        if isinstance(message, Frame | Result):
            data[-1] ^= 1
        return data

    return damaged


def do_wrong(how: str) -> None:
    if how == "corrupt":
        endpoint.encode = corrupt(endpoint.encode)  # type: ignore[attr-defined]
    elif how == "isa":
        os.environ["PYFLOW_ISA"] = _core.runnable_isas()[1]
        assert _core.cpu_info()["isa"] == _core.runnable_isas()[1] != _core.runnable_isas()[-1]
    elif how == "version":
        metadata.version = lambda _: "0.0.9"


def head(scenario: str, path: Path, ranges: list[range], make: type[ModelStage]) -> Traffic:
    if scenario == "chat":
        return chat(path, ranges)
    if scenario in CHECKED:
        with (
            pyflow.load(path, n_threads=1) as model,
            MpiPipeline(path, ranges, pool=model.pool, make=make, **SIZES) as pipeline,
        ):
            CHECKED[scenario](model, pipeline)
            return pipeline.sent
    pool = _core.ThreadPool(1)
    with closing(MpiPipeline(path, ranges, pool=pool, make=make, **SIZES)) as pipeline:
        frames(pipeline)
        return pipeline.sent


def main(scenario: str, model: str, layers: str, out: str) -> None:
    rank, at = MPI.COMM_WORLD.rank, 0
    ranges = [range(at, at := at + int(n)) for n in layers.split(",")]
    path = Path(model)
    scenario, _, culprit = scenario.partition("@")
    make: type[ModelStage] = ModelStage
    if culprit == str(rank):
        make = STAGES.get(scenario, ModelStage)
        do_wrong(scenario)
        if scenario in ("model", "missing"):
            path = Path(out) / "other.gguf"
    if rank == 0:
        try:
            sent = head(scenario, path, ranges, make)
        except PyflowError as error:
            sys.exit(f"error: {error}")
    else:
        quantize = "Q8_0" if scenario == "chat" else None
        sent = serve(path, pool=_core.ThreadPool(1), make=make, quantize=quantize)
    (Path(out) / f"{rank}.json").write_text(json.dumps([sent.messages, sent.nbytes]))


if __name__ == "__main__":
    main(*sys.argv[1:])
