"""The verdict on a job: it goes on, has ended, or has lost a rank.

Ranks of this machine report by their sockets; others through rank 0 and mpiexec's output.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyflow.cluster.supervise.launcher import Death, death, ended, launch_failed, said_by, started
from pyflow.cluster.supervise.lifeline import Loss, Other
from pyflow.errors import LostRankError, PyflowError

_AGREE_S = 0.5
"""How long a report on a rank's death may take."""
_END_S = 2.0
"""How long mpiexec may take to end after rank 0, and rank 0 to report another rank's failure."""
_START_S = 30.0
_MAX_SAID = 1 << 16


class LossError(LostRankError):
    """A rank, or mpiexec, was lost."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(str(loss))
        self.loss = loss


@dataclass(slots=True)
class Rank:
    """A process of this machine that has joined."""

    socket: socket.socket
    pidfd: int
    heard: float
    number: int | None = None
    phase: str = "starting"
    code: int | None = None
    ended: float = 0.0
    died: float = 0.0


@dataclass(slots=True)
class Known:
    """All reports on a job. Times are of one clock.

    host: this machine. hosts: where each rank is to be, rank 0 here.
    """

    host: str
    hosts: Sequence[str]
    timeout_s: float
    began: float
    ranks: list[Rank] = field(default_factory=list)
    elsewhere: dict[int, str] = field(default_factory=dict)
    """The machines of ranks that have started elsewhere."""
    others: dict[int, Other] = field(default_factory=dict)
    """Rank 0's reports on ranks of other machines."""
    failed: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Exit codes of ranks other than 0, and when they were reported."""
    lost: Loss | None = None
    """A rank's own report of a loss."""
    dead: list[Rank] = field(default_factory=list)
    """Ranks whose sockets closed without a report, in order."""
    _said: bytearray = field(default_factory=bytearray)

    def hear(self, data: bytes, now: float) -> None:
        """Takes output of mpiexec and ranks."""
        self._said += data
        text = self.said
        self.elsewhere |= started(text)
        for number, code in ended(text).items():
            self.failed.setdefault(number, (code, now))
        del self._said[:-_MAX_SAID]

    @property
    def said(self) -> str:
        return self._said.decode(errors="replace")

    def rank(self, number: int) -> Rank | None:
        """The rank with this number, if it runs on this machine and has joined."""
        return next((rank for rank in self.ranks if rank.number == number), None)

    def verdict(self, mpiexec: int | None, now: float) -> int | None:
        """The exit code of rank 0, or None while the job goes on. Raises if it cannot.

        mpiexec: its exit code once it has ended, negative for a signal.
        """
        over, head = mpiexec is not None, self.rank(0)
        if head is not None and head.code is not None:
            # The other ranks may leave in order.
            return head.code if over or head.code or now - head.ended > _END_S else None
        if 0 in self.elsewhere:
            raise PyflowError(
                f"rank 0 has started on {self.elsewhere[0]}, expected this machine, {self.host}: "
                "name it first in the file of hosts"
            )
        found = death(self.said) if self._said else None
        if mpiexec is not None and mpiexec < 0 and found is None:
            raise LossError(self._of_mpiexec(Death(None, None, self.host, -mpiexec).why))
        if self.lost is not None:
            raise LossError(self.lost)
        if over or found or (self.dead and now - self.dead[0].died > _AGREE_S):
            raise self._death(found, mpiexec, now)
        if self.dead:
            return None
        for number, (code, told) in self.failed.items():
            if now - told > _END_S:
                raise self._failure(number, code, now)
        for rank in self.ranks:
            if rank.code is None and now - rank.heard > self.timeout_s:
                raise LossError(self._loss(rank, f"has not answered for {self.timeout_s:g} s"))
        if now - self.began > max(_START_S, self.timeout_s) and self._absent() is not None:
            raise self._not_started(now)
        return None

    def _death(self, found: Death | None, mpiexec: int | None, now: float) -> PyflowError:
        """The error of a dead rank: by this machine's sockets if no report names it, because MPICH
        may name another one."""
        if launch_failed(self.said) and self._absent() is not None:
            return self._not_started(now)  # mpiexec has ended the others for that
        is_here = found is None or found.host in (self.host, self.hosts[0])
        if self.dead and is_here and (found is None or found.rank is None):
            first, *others = self.dead
            loss = self._loss(first, "has died")
            at_once = any(rank.died == first.died for rank in others)
            # A rank that has not joined may have died first.
            is_known = not at_once and self._absent() is None
            return LossError(loss if is_known else replace(loss, rank=None))
        if found is None and self._absent() is not None:
            return self._not_started(now)
        if found is None:
            return LossError(self._of_mpiexec(f"has ended with exit code {mpiexec}"))
        for rank in self.ranks:
            if found.rank == rank.number is not None:
                return LossError(self._loss(rank, found.why))
        for number, (host, pid, phase) in self.others.items():
            if number == found.rank or (pid, host) == (found.pid, found.host):
                return LossError(Loss(number, host, phase, found.why))
        return LossError(Loss(found.rank, found.host, "starting", found.why))

    def _failure(self, number: int, code: int, now: float) -> PyflowError:
        why = f"has ended with exit code {code}: {self._last_words(now)}"
        rank = self.rank(number)
        if rank is not None:
            return LossError(self._loss(rank, why))
        if number not in self.elsewhere:
            return self._not_started(now)
        host, _, phase = self.others.get(number, (self.elsewhere[number], 0, "starting"))
        return LossError(Loss(number, host, phase, why))

    def _not_started(self, now: float) -> PyflowError:
        number, host = self._absent() or (0, self.host)
        advice = ""
        if host != self.hosts[0]:
            advice = f"; does 'ssh {host} {sys.executable} -V' work, without a question?"
        elif self._is_named(host):
            advice = f"; the first host must be this machine, {self.host}"
        return PyflowError(
            f"rank {number} on {host} has not started: {self._last_words(now)}{advice}"
        )

    def _absent(self) -> tuple[int, str] | None:
        """A rank that has not started, and its host.

        Preferably one that ssh or mpiexec mentions, then one of another machine.
        """
        there = {rank.number for rank in self.ranks} | self.elsewhere.keys()
        absent = [(n, host) for n, host in enumerate(self.hosts) if n not in there]
        named = (each for each in absent if self._is_named(each[1]))
        others = (each for each in absent if each[1] != self.hosts[0])
        return next(named, next(others, absent[0] if absent else None))

    def _is_named(self, host: str) -> bool:
        """Whether ssh or mpiexec has mentioned this other machine."""
        name = rf"(?<![\w.-]){re.escape(host.rpartition('@')[2])}(?![\w-])"
        return host != self.host and re.search(name, said_by(self.said)) is not None

    def _loss(self, rank: Rank, why: str) -> Loss:
        return Loss(rank.number, self.host, rank.phase, why)

    def _of_mpiexec(self, why: str) -> Loss:
        return Loss(None, self.host, f"running {len(self.hosts)} ranks", why, "mpiexec")

    def _last_words(self, now: float) -> str:
        return said_by(self.said) or f"mpiexec gave no reason in {now - self.began:.1f} s"
