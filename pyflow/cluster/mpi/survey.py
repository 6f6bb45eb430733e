"""Measuring before layers are split: ranks measure themselves and their links for rank 0.

Stages of one process are alike: one measurement stands for all.

A ping measures links under the conditions of a run: a rank that waits sleeps between looks, and so
finds a message late.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar, Unpack

import numpy as np
from msgspec import structs

from pyflow import _core, catalogue, formats
from pyflow.cluster.mpi.endpoint import Endpoint
from pyflow.cluster.mpi.groups import Meeting
from pyflow.cluster.mpi.handshake import check, hello
from pyflow.cluster.planning.members import (
    N_ROUNDS,
    PAUSE_S,
    SIZES,
    Gathers,
    fitted,
    sharing_of,
)
from pyflow.cluster.planning.plan import ClusterProfile
from pyflow.cluster.planning.profile import layer_costs, profile_rank, shared
from pyflow.cluster.planning.survey import Survey
from pyflow.cluster.run.drafts import OpenDrafts
from pyflow.cluster.run.stage import Sizes
from pyflow.cluster.run.worker import Worker, raised, unexpected
from pyflow.cluster.wire.messages import Failure, Goodbye, Hello, Message
from pyflow.cluster.wire.surveys import Gather, Gathered, Link, Measure, Measured, Ping, Profile
from pyflow.engine.offload import OpenDevice, StageDevice, no_device
from pyflow.engine.topology import cgroup_cpus, choose_threads, this_machine
from pyflow.errors import PyflowError
from pyflow.specs import build_spec
from pyflow.specs.model_spec import ModelSpec

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

_Kind = TypeVar("_Kind")

# Pings of one row, with pauses as long as a stage computes; then large ones without pauses.
_N_PINGS, _PAUSE_S = 9, 0.004
_N_LARGE, _LARGE_NBYTES = 3, 1 << 20
_BY_REFERENCE = 1e18  # bytes per second, if nothing is copied


@dataclass(frozen=True, slots=True)
class Surveyor:
    """One rank of a survey.

    send: to a rank. take: waits for the next message to this one. draft: this rank's draft model,
    if it only drafts. at: reports a phase. device: of this rank's layers. link: to the others of
    some ranks, by a number; None: no stage is shared.
    """

    rank: int
    n_ranks: int
    send: Callable[[int, Message], None]
    take: Callable[[], Message]
    checkpoint: formats.Checkpoint
    pool: _core.ThreadPool
    draft: LoadedModel | None = None
    at: Callable[[str], None] = lambda _: None
    device: StageDevice | None = None
    link: Callable[[Sequence[int], int], _core.Link | None] | None = None

    def lead(self, sizes: Sizes, drafters: Sequence[int] = ()) -> Survey:
        """On rank 0: measures all ranks, while the others `assist`. sizes: of the future caches.
        drafters: ranks that draft, the last one for rank 0.

        All measure themselves at once, as they compute when many runs are on their way. Takes a
        second or two, and some milliseconds more for each rank.
        """
        n_ranks, spec = self.n_ranks, build_spec(self.checkpoint)
        for rank in range(1, n_ranks):
            self.send(rank, Measure(0, rank))
        own = profile_rank(0, n_ranks, self.checkpoint, spec, self.pool, device=self.device)
        profiles = {0: own}
        while len(profiles) < n_ranks:
            message = self._expect(Profile)
            profiles[message.profile.rank] = message
        drafter = drafters[-1] if drafters else 0
        others = {1, n_ranks - 1, drafter}
        links = {(0, to): self._link(to) for to in others if to in range(1, n_ranks)}
        for first in (1, 2):  # so that each rank takes part in one of these at a time
            pairs = [(i, i + 1) for i in range(first, n_ranks - 1, 2)]
            for i, to in pairs:
                self.send(i, Measure(0, to))
            for _ in pairs:
                measured = self._expect(Measured)
                links[measured.rank, measured.to] = measured.link
        costs, n_scratch = layer_costs(self.checkpoint, spec, self.pool, sizes)
        ranks = shared([profiles[i].profile for i in range(n_ranks)], n_scratch)
        reads = tuple(profiles[i].read_bytes_per_s for i in range(n_ranks))
        sharing, gathers = None, None
        workers = [rank.rank for rank in ranks if rank.rank not in drafters]
        if self.link and len(workers) > 1 and not any(rank.device for rank in ranks):
            sharing = sharing_of(self.checkpoint, spec, self.pool)
            gathers = self._gathers(workers) if sharing else None
        return Survey(
            ClusterProfile(ranks, links, costs, drafter),
            reads,
            draft_ms=profiles[drafter].draft_ms if drafter else None,
            sharing=sharing,
            gathers=gathers,
        )

    def _gathers(self, workers: Sequence[int]) -> Gathers:
        """Of all neighbours, in two turns, and of all together."""
        turns = [
            [workers[i : i + 2] for i in range(first, len(workers) - 1, 2)] for first in (0, 1)
        ]
        if len(workers) > 2:
            turns.append([workers])
        found: dict[tuple[int, ...], Sequence[float]] = {}
        for number, groups in enumerate(turns, start=1):
            for rank in (rank for group in groups for rank in group if rank != self.rank):
                (group,) = (group for group in groups if rank in group)
                self.send(rank, Gather(0, number, tuple(group)))
            if groups and groups[0][0] == self.rank:
                found[tuple(groups[0])] = self._rounds(groups[0], number)
            while not all(tuple(group) in found for group in groups):
                gathered = self._expect(Gathered)
                found[gathered.ranks] = gathered.seconds
        return fitted(found)

    def _rounds(self, ranks: Sequence[int], number: int) -> list[float]:
        """Median seconds of rounds of each size."""
        link = self.link(ranks, number) if self.link else None
        if link is None:
            raise PyflowError(f"rank {self.rank}: expected to share stages; use the same options")
        link.meet(b"rounds")
        return [
            statistics.median(link.time_rounds(nbytes // len(ranks), N_ROUNDS, PAUSE_S))
            for nbytes in SIZES
        ]

    def greet(self) -> tuple[Hello, ...]:
        """On rank 0: the Hello of every rank.

        PyflowError unless they can form a pipeline.
        """
        hellos = {0: hello(0, self.checkpoint, self.device)}
        while len(hellos) < self.n_ranks:
            message = self._expect(Hello)
            hellos[message.rank] = message
        found = tuple(hellos[rank] for rank in range(self.n_ranks))
        check(found)
        return found

    def assist(self) -> Message:
        """On another rank: measures on request. Returns the first message of another kind."""
        while True:
            match message := self.take():
                case Ping(is_back=False):
                    self.send(message.rank, structs.replace(message, is_back=True))
                case Measure() if message.to == self.rank:
                    self.at("measuring")
                    spec = build_spec(self.checkpoint)
                    profile = profile_rank(
                        self.rank,
                        self.n_ranks,
                        self.checkpoint,
                        spec,
                        self.pool,
                        self.draft,
                        self.device,
                    )
                    self.send(0, profile)
                case Gather():
                    seconds = self._rounds(message.ranks, message.number)
                    if message.ranks[0] == self.rank:
                        self.send(0, Gathered(0, message.ranks, tuple(seconds)))
                case Measure():
                    self.send(0, Measured(0, self.rank, message.to, self._link(message.to)))
                case _:
                    return message

    def _link(self, to: int) -> Link:
        """Latency: half a small round trip. Rate: bytes over the extra time of a large one."""
        width = build_spec(self.checkpoint).row_width
        n_rows = max(2, _LARGE_NBYTES // (4 * width))
        small = statistics.median(self._ping(to, (1, width), _N_PINGS, _PAUSE_S))
        large = min(self._ping(to, (n_rows, width), _N_LARGE, 0.0))
        # A small message spends part of its time unread; a large one possibly less.
        return Link(small, 4 * n_rows * width / max(large - small, 0.1 * large))

    def _ping(self, to: int, shape: tuple[int, int], n: int, pause_s: float) -> Iterator[float]:
        rows = np.zeros(shape, np.float32)
        for _ in range(n):
            time.sleep(pause_s)
            begun = time.monotonic()
            self.send(to, Ping(0, self.rank, rows))
            self._expect(Ping)
            yield (time.monotonic() - begun) / 2

    def _expect(self, kind: type[_Kind]) -> _Kind:
        message = self.take()
        if isinstance(message, Failure):
            raise raised(message)
        if not isinstance(message, kind):
            found = type(message).__name__
            raise PyflowError(f"rank {self.rank}: expected a {kind.__name__}, found a {found}")
        return message


def survey_threads(
    checkpoint: formats.Checkpoint, n_threads: Sequence[int], sizes: Sizes
) -> Survey:
    """Of stages of this process with so many threads each.

    Those with as many threads are alike. As many measure themselves at once as can compute at once.
    """
    spec, n_stages = build_spec(checkpoint), len(n_threads)
    n_cores, _ = choose_threads(this_machine(), cgroup_cpus())
    found = [
        _typical(checkpoint, spec, n, min(n_threads.count(n), max(1, n_cores // n)), n_stages)
        for n in sorted(set(n_threads))
    ]
    by_threads = dict(zip(sorted(set(n_threads)), found, strict=True))
    pool = _core.ThreadPool(n_threads[0])
    costs, n_scratch = layer_costs(checkpoint, spec, pool, sizes)
    profiles = [structs.replace(by_threads[n].profile, rank=i) for i, n in enumerate(n_threads)]
    ranks = shared(profiles, n_scratch)
    link = Link(_queue_s(), _BY_REFERENCE)
    links = {(i, i + 1): link for i in range(n_stages - 1)}
    sharing = sharing_of(checkpoint, spec, pool) if n_stages > 1 else None
    return Survey(
        ClusterProfile(ranks, links, costs),
        tuple(by_threads[n].read_bytes_per_s for n in n_threads),
        sharing=sharing,
        gathers=_gathers_of_threads(n_stages) if sharing else None,
    )


def _typical(
    checkpoint: formats.Checkpoint, spec: ModelSpec, n_threads: int, at_once: int, n_stages: int
) -> Profile:
    """Of a stage with so many threads, while others compute."""
    pools = [_core.ThreadPool(n_threads) for _ in range(at_once)]
    with ThreadPoolExecutor(at_once) as measuring:
        found = list(
            measuring.map(lambda pool: profile_rank(0, n_stages, checkpoint, spec, pool), pools)
        )
    times = zip(*(each.profile.layer_ms for each in found), strict=True)
    typical = structs.replace(
        found[0].profile,
        layer_ms=tuple(map(statistics.median, times)),
        head_ms=statistics.median(each.profile.head_ms for each in found),
    )
    read = statistics.median(each.read_bytes_per_s for each in found)
    return structs.replace(found[0], profile=typical, read_bytes_per_s=read)


def _gathers_of_threads(n_stages: int) -> Gathers:
    """Of members in this process, by the rounds of two."""

    def rounds(link: _core.Link) -> list[float]:
        return [
            statistics.median(link.time_rounds(nbytes // 2, N_ROUNDS, PAUSE_S)) for nbytes in SIZES
        ]

    with ThreadPoolExecutor(2) as both:
        seconds, _ = both.map(rounds, _core.Link.threads(2))
    return fitted({(i, i + 1): seconds for i in range(n_stages - 1)})


def _queue_s() -> float:
    """Seconds until a waiting thread gets an item that another thread has queued."""
    there: SimpleQueue[bool] = SimpleQueue()
    back: SimpleQueue[bool] = SimpleQueue()

    def echo() -> None:
        while there.get():
            back.put(True)

    with ThreadPoolExecutor(1) as other:
        other.submit(echo)
        samples = []
        for _ in range(_N_PINGS):
            time.sleep(_PAUSE_S)
            begun = time.monotonic()
            there.put(True)
            back.get()
            samples.append((time.monotonic() - begun) / 2)
        there.put(False)
    return statistics.median(samples)


def survey(
    path: str | Path,
    *,
    pool: _core.ThreadPool,
    drafters: Sequence[int] = (),
    drafts: OpenDrafts | None = None,
    open_device: OpenDevice = no_device,
    **sizes: Unpack[Sizes],
) -> Survey | None:
    """Called on all ranks together. Returns the survey on rank 0, and None on the others.

    drafters: ranks that draft. drafts: on one of these, opens its models. open_device: of this
    rank's layers. Rank 0 raises the errors of all ranks, and differences in version or model
    between them.
    """
    meeting = Meeting(shares=True)
    endpoint = Endpoint(meeting.offer)
    rank, reporter = endpoint.rank, endpoint.reporter
    worker = Worker(rank, reporter.host, 0, endpoint.send)
    endpoint.start(worker.deliver)
    reporter.at("measuring")

    def surveyor(draft: LoadedModel | None = None) -> Surveyor:
        checkpoint = formats.open(catalogue.resolve(path))
        device = open_device(checkpoint)
        return Surveyor(
            rank,
            endpoint.size,
            endpoint.send,
            worker.take,
            checkpoint,
            pool,
            draft,
            device=device,
            link=partial(meeting.link, endpoint),
        )

    try:
        if rank == 0:
            own = surveyor()
            hellos = own.greet()
            return replace(own.lead(sizes, drafters), hellos=hellos)
        with worker.reporting(), drafts() if drafts else nullcontext(()) as models:
            own = surveyor(*models[-1:])
            endpoint.send(0, hello(rank, own.checkpoint, own.device))
            message = own.assist()
            if not isinstance(message, Goodbye):
                raise unexpected(rank, "measuring", message)
        return None
    finally:
        if rank == 0:
            for other in range(1, endpoint.size):
                endpoint.send(other, Goodbye(0))
        endpoint.leave()
        meeting.close()
