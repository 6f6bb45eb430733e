"""Jobs on the toy model in virtual time, and a scheduler that a test drives by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyflow.cluster.planning.toy_model import Language, LanguageDrafter, LanguageStage
from pyflow.cluster.planning.virtual import ClusterTimes, Trace, VirtualPipeline
from pyflow.cluster.run.job import Done, Emit, Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.wire.messages import Cancel, Drafted, DraftRequest, Frame, Result
from pyflow.cluster.wire.surveys import Link

PROMPT = list(range(100, 140))
NAMED = {
    "iterative": iterative(),
    "speculative": speculative(4),
    "pipeinfer": pipeinfer(2, 6),
    "paper": pipeinfer(2, 6, redrafts=True),
    "no cancellation": pipeinfer(2, 6, cancels=False),
    "no continuous speculation": pipeinfer(2, 6, continuous=False),
    "no multibuffering": pipeinfer(2, 6, partitioned=False),
    "no asynchrony": pipeinfer(2, 6, asynchronous=False),
    "cut off": pipeinfer(3, 6, least=0.4, recovery=0.1, decay=0.05),
}


class Run:
    """One job on the made-up language."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        n_stages: int = 4,
        alpha: float = 0.7,
        seed: int = 0,
        shake: float = 0.0,
        n_committed: int = 0,
        drafter: Callable[[Language, float], Any] = LanguageDrafter,
        **given: Any,
    ) -> None:
        """given: fields of the job. n_committed: of its tokens, as many as there is room for."""
        fields = {"n_predict": 60, "n_ctx": 256, "n_partitions": 8, "n_batch": 512} | given
        n_predict, n_ctx = fields["n_predict"], fields["n_ctx"]
        language, rng = Language(n_stages, seed), random.Random(seed)
        self.expected = language.write(PROMPT, n_predict)
        committed = self.expected[: min(n_committed, n_predict, n_ctx - len(PROMPT))]
        job = Job(prompt=PROMPT, committed=committed, **fields)
        self.scheduler = Scheduler(job, strategy)
        self.stages = [LanguageStage(language, i, n_ctx, job.window) for i in range(n_stages)]
        times = ClusterTimes(
            stage_s=[lambda n: 0.02 * (1 + 0.05 * (n - 1))] * n_stages,
            n_layers=[5] * n_stages,
            link=Link(1e-4, 118e6),
            row_nbytes=32768,
            draft_s=0.006,
        )
        self.trace: Trace = VirtualPipeline(
            self.scheduler,
            self.stages,
            times,
            drafter(language, alpha),
            jitter=lambda s: s * rng.uniform(1 - shake, 1 + 4 * shake),
        ).run()

    def check(self) -> None:
        """The tokens, and no cell but those of the text."""
        tokens = self.trace.tokens
        assert tokens == self.expected[: len(tokens)]
        n_past = self.scheduler.n_past
        assert len(PROMPT) <= n_past < len(PROMPT) + len(tokens)
        for stage in self.stages:
            cells = stage.held(0)
            assert len(cells) == n_past
            first = 0 if stage.window is None else max(0, n_past + 1 - stage.window)
            assert None not in cells[first:]
            assert stage.n_used == len(cells) - cells.count(None)
        assert self.scheduler.in_flight == 0


STRATEGIES = st.builds(
    Strategy,
    n_draft=st.integers(0, 6),
    n_rows=st.integers(1, 6),
    n_flight=st.integers(1, 12),
    waits=st.booleans(),
    redrafts=st.booleans(),
    least=st.sampled_from([0.0, 0.3, 0.6]),
    recovery=st.sampled_from([0.0, 0.1]),
    decay=st.sampled_from([0.0, 0.2]),
    cancels=st.booleans(),
    continuous=st.booleans(),
    partitioned=st.booleans(),
    asynchronous=st.booleans(),
)


EVENTS = given(
    strategy=STRATEGIES,
    n_stages=st.integers(1, 6),
    alpha=st.floats(0, 1),
    seed=st.integers(0, 10_000),
    shake=st.sampled_from([0.0, 0.1, 0.9]),
    n_predict=st.integers(1, 40),
    n_ctx=st.sampled_from([42, 44, 47, 50, 64, 100, 256]),
    n_partitions=st.integers(1, 8),
    n_batch=st.sampled_from([1, 7, 39, 40, 512]),
    n_committed=st.sampled_from([0, 0, 1, 2, 11, 40]),
    window=st.sampled_from([None, None, 2, 3, 8, 20]),
)


class Hand:
    """A scheduler whose messages a test writes."""

    def __init__(self, strategy: Strategy, n_predict: int = 50, **job: Any) -> None:
        job = {"prompt": [1, 2, 3], "n_predict": n_predict, "n_ctx": 64} | job
        self.scheduler = Scheduler(Job(**job), strategy)
        self.frames: list[Frame] = []
        self.cancelled: list[int] = []
        self.asked: DraftRequest | None = None
        self.ended = False
        self.text: list[int] = []
        self.take(self.scheduler.start())

    def take(self, actions: object) -> None:
        for action in actions:  # type: ignore[attr-defined]
            if isinstance(action, Frame):
                self.frames.append(action)
            elif isinstance(action, Cancel):
                self.cancelled += action.runs
            elif isinstance(action, DraftRequest):
                self.asked = action
            elif isinstance(action, Emit):
                self.text += action.tokens
            elif isinstance(action, Done):
                self.ended = True

    def draw(self, run: int, *draws: int, skipped: bool = False) -> None:
        self.take(self.scheduler.on(Result(0, run, draws, skipped)))

    def draft(self, *tokens: int) -> None:
        assert self.asked is not None
        self.take(self.scheduler.on(Drafted(0, self.asked.number, tokens, (0.9,) * len(tokens))))

    def runs(self) -> list[tuple[int, int, tuple[int, ...]]]:
        return [(f.run.seq, f.run.position, f.run.tokens) for f in self.frames if f.run]
