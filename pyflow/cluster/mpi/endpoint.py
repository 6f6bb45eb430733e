"""A rank's messages to and from the other ranks, and its watch over them.

Any thread sends, and waits until the transport has taken the bytes; one thread receives and never
sends. So every rank receives whatever else it does, and no two ranks wait for each other.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import NoReturn, TypeAlias

from pyflow.cluster.mpi.pauses import Pauses, sleep_exactly
from pyflow.cluster.mpi.transport import connect
from pyflow.cluster.mpi.watch import LEAVING, Watch
from pyflow.cluster.supervise.lifeline import EXIT_LOST, Loss, of_process
from pyflow.cluster.wire.codec import WireError, decode, encode
from pyflow.cluster.wire.messages import Cancel, Message, Pulse

# Called with the sender, and its message or why its bytes were none.
Deliver: TypeAlias = Callable[[int, Message | WireError], None]

_ABORT_S = 5  # an abort may wait for a machine that has gone
_PLACE = struct.Struct("<I188s64s")  # pid, host and offer of a rank
_HOST = 188  # bytes


@dataclass(slots=True)
class Traffic:
    """What a rank has sent to others, except heartbeats, by the names of message types."""

    messages: Counter[str] = field(default_factory=Counter)
    nbytes: Counter[str] = field(default_factory=Counter)


class Endpoint:
    """This rank among all that were started together. All ranks make one at the same time."""

    def __init__(self, offer: bytes = b"") -> None:
        """offer: up to 64 bytes for the others. PyflowError if there is no transport."""
        self.reporter = of_process()
        self.reporter.at("joining the others")
        self._transport = connect()
        self.rank, self.size = self._transport.rank, self._transport.size
        self.hosts, self.pids, self.offers = self._places(offer)
        self.sent = Traffic()
        self._lock = Lock()
        self._losing = Lock()
        self._told: dict[int, str] = {}
        self._watch = Watch(
            self.rank,
            self.hosts,
            timeout_s=self.reporter.timeout_s,
            pulse=self._pulse,
            lose=self.lose,
        )
        self._deliver: Deliver
        self._thread: Thread

    def start(self, deliver: Deliver) -> None:
        """Calls deliver for every message, in a thread of its own, which deliver must not hold up.

        Messages of a rank arrive in the order in which it sent them, but cancellations first.
        """
        self._deliver = deliver
        self._thread = Thread(target=self._receive, daemon=True)
        self._thread.start()
        self._watch.start()

    def send(self, to: int, message: Message) -> None:
        """Safe from any thread but the one that delivers. This rank gets its own as they are."""
        if to == self.rank:
            self._deliver(to, message)
            return
        data = encode(message)
        try:
            self._transport.send(to, data, urgent=isinstance(message, Cancel))
        except self._transport.error as error:
            phase = self._watch.phases.get(to, "unknown")
            self.lose(Loss(to, self.hosts[to], phase, f"cannot be reached ({error})"))
        with self._lock:
            self.sent.messages[type(message).__name__] += 1
            self.sent.nbytes[type(message).__name__] += len(data)

    def leave(self) -> None:
        """Returns once all ranks have called this, after which they must not send; once only."""
        self.reporter.at(LEAVING)
        self._watch.leave()
        self._transport.leave()
        self._thread.join()
        self._watch.close()
        self._transport.close()

    def lose(self, loss: Loss) -> NoReturn:
        """Ends all ranks with one message, written by the supervisor if there is one."""
        with self._losing:  # never left: losses that follow from this one are not reported
            if self.reporter.is_joined:
                self.reporter.lose(loss)
                time.sleep(self._watch.timeout_s)  # it ends this process long before
            sys.stderr.write(f"error: {loss}\n")
            sys.stderr.flush()
            if self.reporter.is_supervised:
                os._exit(EXIT_LOST)  # of another machine: mpiexec tells the supervisor
            signal.alarm(_ABORT_S)
            # The transport would add a line of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self._transport.abort(EXIT_LOST)
            os._exit(EXIT_LOST)

    def _places(self, offer: bytes) -> tuple[list[str], list[int], list[bytes]]:
        """Host, process and offer of every rank."""
        mine = _PLACE.pack(os.getpid(), self.reporter.host.encode()[:_HOST], offer)
        places = [_PLACE.unpack(found) for found in self._transport.exchange(mine)]
        hosts = [host.rstrip(b"\0").decode(errors="replace") for _, host, _ in places]
        return hosts, [pid for pid, _, _ in places], [given for _, _, given in places]

    def _pulse(self, to: int) -> None:
        """Sends a heartbeat, and reports to the supervisor what rank 0 knows of the other one."""
        self._transport.offer(to, encode(Pulse(0, self.reporter.phase)))
        phase = self._watch.phases[to]
        if self.rank == 0 and phase != self._told.get(to):
            self._told[to] = phase
            self.reporter.tell_of(to, (self.hosts[to], self.pids[to], phase))

    def _receive(self) -> None:
        try:
            sleep_exactly()
            n_here = self.hosts.count(self.hosts[self.rank])
            pauses, is_over = Pauses(n_here > len(os.sched_getaffinity(0))), False
            while True:
                if (message := self._receive_one()) is not None:
                    if not isinstance(message, Pulse):
                        pauses.begin()
                elif is_over:
                    return
                elif self._transport.have_all_left():
                    is_over = True  # except for messages that arrived before the last rank left
                else:
                    time.sleep(pauses.next())
        except self._transport.error as error:
            reporter, why = self.reporter, f"cannot receive ({error})"
            self.lose(Loss(self.rank, reporter.host, reporter.phase, why))
        except BaseException:
            traceback.print_exc()
            self._transport.abort(1)  # senders to this rank would wait for ever

    def _receive_one(self) -> Message | WireError | None:
        """Delivers the next message. Returns it, or None if none has arrived."""
        if (arrived := self._transport.receive()) is None:
            return None
        source, data = arrived
        found: Message | WireError
        try:
            found = decode(data)
        except WireError as error:
            found = error
        if isinstance(found, Pulse):
            self._watch.heard(source, found.phase)
        else:
            self._watch.heard(source)
            self._deliver(source, found)
        return found
