"""A measured cluster in virtual time, writing a text of the toy model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
from msgspec import structs

from pyflow.cluster.planning.plan import ClusterProfile, evaluate_split
from pyflow.cluster.planning.toy_model import Language, LanguageDrafter, LanguageStage, mix
from pyflow.cluster.planning.virtual import (
    DRAFTER,
    HEAD,
    ClusterTimes,
    Executor,
    Trace,
    VirtualPipeline,
)
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy, iterative
from pyflow.cluster.wire.messages import Frame
from pyflow.cluster.wire.surveys import Link

_INSTANT = Link(0.0, 1e18)
# Texts among which `typical_seeds` sorts.
_N_TEXTS = 48


def simulate(
    times: ClusterTimes,
    strategy: Strategy,
    acceptance: float,
    *,
    n_tokens: int,
    seed: int = 0,
    n_asked: int = 0,
) -> Trace:
    """Writes n_tokens. Text and drafts depend on the seed alone, not on the pipeline.

    n_asked: rows that the drafter asks about in every run.
    """
    drafter = LanguageDrafter(Language(1), acceptance, seed, n_asked)
    return _run(
        times, strategy, Job(prompt=[0], n_predict=n_tokens, n_ctx=n_tokens + 1024), drafter
    )


def read(times: ClusterTimes, n_prompt: int, n_batch: int) -> float:
    """Seconds until a prompt has drawn its token, read in runs of n_batch rows."""
    job = Job(prompt=[0] * n_prompt, n_predict=1, n_ctx=n_prompt + 1024, n_batch=n_batch)
    return _run(times, iterative(), job).prompt_s


def _run(
    times: ClusterTimes, strategy: Strategy, job: Job, drafter: LanguageDrafter | None = None
) -> Trace:
    last = LanguageStage(Language(1), 0, job.n_ctx)
    stages: list[Executor] = [*[_Onward()] * (len(times.stage_s) - 1), last]
    return VirtualPipeline(Scheduler(job, strategy), stages, times, drafter).run()


def cluster_times(
    pipeline: ClusterProfile, ranges: Sequence[range], *, draft_ms: float
) -> ClusterTimes:
    """The durations on these ranks. ResourceError names those that lack memory."""
    n_most = min(len(profile.layer_ms) for profile in pipeline.ranks)
    splits = [evaluate_split(pipeline, ranges, n_rows=n) for n in range(1, n_most + 1)]
    places = [i for i, part in enumerate(ranges) if part]
    links = {(i, i + 1): pipeline.link(a, b) for i, (a, b) in enumerate(pairwise(places))}
    # The driver is on rank 0; the drafter is beside it or on a rank of its own.
    first, last = (pipeline.link(0, i) if i else _INSTANT for i in (places[0], places[-1]))
    links |= {(HEAD, 0): first, (len(places) - 1, HEAD): last}
    to_drafter = pipeline.link(0, pipeline.drafter) if pipeline.drafter else _INSTANT
    links |= {(HEAD, DRAFTER): to_drafter, (DRAFTER, HEAD): to_drafter}
    return ClusterTimes(
        stage_s=[_Rows(tuple(s.parts[i].run_ms / 1e3 for s in splits)) for i in places],
        n_layers=[len(ranges[i]) for i in places],
        link=first if places[0] else last,
        row_nbytes=pipeline.layers.row_nbytes,
        draft_s=draft_ms / 1e3,
        links=links,
    )


def in_turns(times: ClusterTimes) -> ClusterTimes:
    """The same times if drafter and first stage share a rank: each runs at half speed."""
    first, *others = times.stage_s
    return replace(times, stage_s=[lambda n: 2 * first(n), *others], draft_s=2 * times.draft_s)


@cache
def typical_seeds(right: float, n_tokens: int) -> list[int]:
    """Of the drafter's luck, the most typical first: so often right, and so often twice, four and
    eight times in a row. The luck of a single text would else decide between what is nearly equal.
    """
    language = Language(1)
    cells = [language.first()]
    for token in [0, *language.write([0], n_tokens)]:
        cells.append(language.step(cells[-1], token))

    def miss(seed: int) -> float:
        lucky = [mix(last, seed) < right * (1 << 64) for (last,) in cells[1:]]
        total = 0.0
        for n in (1, 2, 4, 8):
            runs = [all(lucky[i : i + n]) for i in range(len(lucky) - n + 1)]
            total += abs(statistics.fmean(runs) - right**n)
        return total

    return sorted(range(_N_TEXTS), key=miss)


class _Onward:
    """A stage of which only the time counts: rows leave it as they came."""

    def handle(self, frame: Frame, skip: bool = False) -> Frame:
        if frame.run is None or frame.skipped:
            return frame
        if skip:
            return structs.replace(frame, hidden=None, skipped=True)
        if frame.hidden is None:
            asked = frame.run.questions.tokens if frame.run.questions else ()
            inputs = np.array(frame.run.tokens + asked, np.uint64)
            return structs.replace(frame, hidden=inputs[:, None])
        return frame


@dataclass(frozen=True, slots=True)
class _Rows:
    """Seconds of a run by its rows; more than were measured go on like the last ones."""

    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        known = self.seconds
        if n <= len(known):
            return known[n - 1]
        slope = (known[-1] - known[0]) / max(1, len(known) - 1)
        return known[-1] + max(0.0, slope) * (n - len(known))
