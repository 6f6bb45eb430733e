"""Pipelines of real models, and a head that is played by hand."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow import SamplingParams
from pyflow.cluster.mpi.layers import even
from pyflow.cluster.run.stage import ModelStage, Sizes
from pyflow.cluster.run.threads import local_stages
from pyflow.cluster.wire.messages import Accept, Frame, Op, Result, Run

from .. import tiny_models
from .ranks import BENCH, Start, run_ranks

sys.path.append(str(BENCH))  # no package; cover.py imports its oracle

from .cover import SIZES

TEXT = "Once upon a time, in a village between two rivers, there lived an old clockmaker who"


class Head:
    """Numbers runs and sends them through stages, one after the other."""

    def __init__(self, stages: Sequence[ModelStage], sampling: SamplingParams, keep: int) -> None:
        self.stages = stages
        self.numbers = itertools.count()
        self.kept = min(stage.reset(sampling, keep=keep) for stage in stages)

    def through(self, frame: Frame) -> Result | None:
        message: Any = frame
        for stage in self.stages:
            message = stage.handle(message)
        assert message is None or isinstance(message, Result)
        return message

    def do(self, *ops: Op) -> None:
        assert self.through(Frame(0, 0, ops)) is None

    def run(self, tokens: Sequence[int], position: int, *ops: Op, **how: Any) -> Result:
        number = next(self.numbers)
        run = Run(number, how.pop("seq", 0), position, tuple(tokens), **how)
        result = self.through(Frame(0, number, ops, run))
        assert result is not None
        assert result.run == number
        return result

    def decode(self, text: Sequence[int], n: int, *, start: int = 0, chunk: int = 7) -> list[int]:
        """Plain decoding: text from `start` on in chunks, then a token per run, n draws in all."""
        self.do(Accept(tuple(text[:start])))
        drawn: list[int] = []
        for at in range(start, len(text), chunk):
            part, is_last = tuple(text[at : at + chunk]), at + chunk >= len(text)
            drawn += self.run(part, at, n_draws=int(is_last)).draws
            assert len(drawn) == is_last
            self.do(Accept(part))
        for at in range(len(text), len(text) + n - 1):
            part = tuple(drawn[-1:])
            drawn += self.run(part, at).draws
            self.do(Accept(part))
        return drawn

    def n_free(self) -> list[int]:
        return [stage.n_free for stage in self.stages]


@dataclass(frozen=True)
class Rig:
    """A model, and its pipelines by their number of stages, opened once."""

    model: pyflow.Model
    prompt: list[int]
    sizes: Sizes
    stages: Callable[[int, bool], list[ModelStage]]
    """By their number, and whether each has a thread pool of its own."""

    def plain(self, tokens: Sequence[int], sampling: SamplingParams, n: int) -> list[int]:
        """What plain decoding draws."""
        drawn = self.model.generate(tokens, n_predict=n, sampling=sampling)
        assert drawn.timings.predicted_n == n
        return drawn.tokens

    def head(
        self, n_stages: int, sampling: SamplingParams, *, keep: int = 0, own_pools: bool = False
    ) -> Head:
        """A new job for stages that share a thread pool, or have one thread each."""
        return Head(self.stages(n_stages, own_pools), sampling, keep)

    def wrong(self, token: int) -> int:
        return (token + 1) % self.model.spec.n_vocab


@pytest.fixture(scope="package")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, which sees no further back than 24 tokens in a layer."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return tiny_models.write_model(path, n_layers=6, window=24, has_tokenizer=True)


@pytest.fixture(scope="package")
def rigs(request: pytest.FixtureRequest, tiny_path: Path) -> Iterator[Callable[[str], Rig]]:
    """Rigs by the names of models; "tiny" is made here."""
    with ExitStack() as opened:

        @cache
        def rig(name: str) -> Rig:
            path = tiny_path if name == "tiny" else request.getfixturevalue("model_path")(name)
            model = opened.enter_context(pyflow.load(path, n_threads=2))

            @cache
            def stages(n_stages: int, own_pools: bool) -> list[ModelStage]:
                return local_stages(
                    model.checkpoint,
                    model.spec,
                    layers=even(model.spec.n_layers, n_stages),
                    sampling=SamplingParams(seed=0),
                    pool=None if own_pools else model.pool,
                    **SIZES,
                )

            return Rig(model, model.tokenizer.encode(TEXT), SIZES, stages)

        yield rig


@pytest.fixture(params=["smollm2", "gemma3"])
def rig(request: pytest.FixtureRequest, rigs: Callable[[str], Rig]) -> Rig:
    return rigs(request.param)


@pytest.fixture
def start(mpiexec: str, tmp_path: Path) -> Start:
    """Runs a program of this folder on n ranks, which must name tmp_path; leaves none behind."""
    return lambda n, *args: run_ranks(mpiexec, n, *args, known_by=str(tmp_path))
