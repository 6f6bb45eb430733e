"""Groups: ranks that share the rows of a stage, and the links between them.

A layout SxM makes S groups of M ranks. Ranks follow each other in their groups, drafters left out;
the first rank of a group is member 0, and stands for the group in the pipeline.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Thread

import psutil

from pyflow import _core
from pyflow.cluster.mpi.endpoint import Endpoint
from pyflow.cluster.mpi.layers import Placement, Ranks, Splitter, placement
from pyflow.cluster.wire.surveys import MAX_MEMBERS, Group
from pyflow.errors import PyflowError

_OFFER = struct.Struct("<iH16s32s")  # file in memory, port, key, addresses
_N_ADDRESSES = 8
_GREETING = struct.Struct("<16sHH")  # key, member, number of the link
_DIAL_S, _AGAIN_S = 2.0, 0.02
# Of the time after which a silent rank is lost: heartbeats find that first, and tell which it is.
LATER = 2.0
# Links of a rank: of its stage, and those that are measured before.
_N_LINKS = 4
_PAGE = 1 << 16


def group_of(
    rank: int, n_ranks: int, n_members: int, drafters: Sequence[int] = ()
) -> Sequence[int]:
    """The ranks of this rank's group, in order; alone if it drafts or nothing is shared."""
    workers = [other for other in range(n_ranks) if other not in drafters]
    if rank not in workers:
        return [rank]
    first = workers.index(rank) // n_members * n_members
    return workers[first : first + n_members]


@dataclass(frozen=True, slots=True)
class Grouped:
    """A splitter for groups of so many members, which `split` sees as ranks. speeds: of the members
    of each, in any unit, to which their rows are in proportion; none: they are alike."""

    split: Splitter
    n_members: int
    speeds: Sequence[int] = ()

    def __call__(self, ranks: Ranks) -> Placement:
        n, drafters = len(ranks.hellos), ranks.drafters
        all_of = [group_of(r, n, self.n_members, drafters) for r in range(n)]
        leaders = [r for r in range(n) if all_of[r][0] == r]
        own = [i for i, rank in enumerate(leaders) if rank in drafters]
        groups = Ranks([ranks.hellos[r] for r in leaders], ranks.spec, ranks.measure, own)
        layers = placement(self.split(groups)).layers
        if len(layers) != len(leaders):
            raise PyflowError(f"layers: expected {len(leaders)} ranges, found {len(layers)}")
        held = dict(zip(leaders, layers, strict=True))
        shared = [all_of[r] for r in leaders if len(all_of[r]) > 1]
        return Placement(
            [held.get(rank, range(0)) for rank in range(n)],
            [Group(tuple(group), tuple(self.speeds) or (1,) * len(group)) for group in shared],
        )


@dataclass(frozen=True, slots=True)
class Roles:
    """What ranks do. drafters: these draft and hold no layers. shares: stages may have members."""

    drafters: Sequence[int] = ()
    shares: bool = False


NO_ROLES = Roles()


class Meeting:
    """What a rank offers to the others of its group before anybody knows who is there.

    Made by all ranks before their endpoints, which exchange the offers.
    """

    def __init__(self, shares: bool) -> None:
        """shares: there may be groups."""
        self.offer = b""
        """For the endpoint; empty without groups."""
        self._server: socket.socket | None = None
        if shares:
            self._server = socket.create_server(("", 0))
            self._board = os.memfd_create("pyflow-group")
            os.ftruncate(self._board, _N_LINKS * _board_nbytes())  # pages come when they are used
            found = b"".join(map(socket.inet_aton, _addresses()))
            port = self._server.getsockname()[1]
            self.offer = _OFFER.pack(self._board, port, secrets.token_bytes(16), found)

    def close(self) -> None:
        """Takes the offer back; idempotent."""
        if self._server is not None:
            self._server.close()
            os.close(self._board)
            self._server = None

    def linking(
        self, endpoint: Endpoint
    ) -> Callable[[Sequence[int], int], _core.Link | None] | None:
        """`link` of an endpoint; None without groups."""
        return None if self._server is None else partial(self.link, endpoint)

    def link(self, endpoint: Endpoint, ranks: Sequence[int], number: int = 0) -> _core.Link | None:
        """To the other ones of these ranks, which call this too; None: there are none.

        number: of the link, of which each pair of ranks has one. PyflowError if they cannot be
        reached.
        """
        if len(ranks) == 1 or self._server is None:
            return None
        own, first = ranks.index(endpoint.rank), ranks[0]
        offers = [_OFFER.unpack(endpoint.offers[rank][: _OFFER.size]) for rank in ranks]
        for rank, (*_, key, _) in zip(ranks, offers, strict=True):
            if not any(key):
                raise PyflowError(
                    f"rank {endpoint.rank} on {endpoint.hosts[endpoint.rank]}: expected to share "
                    f"layers with rank {rank} on {endpoint.hosts[rank]}, which shares none; give "
                    "all ranks the same --layout"
                )
        meet_s = LATER * endpoint.reporter.timeout_s
        if len({endpoint.hosts[rank] for rank in ranks}) > 1:
            ends = _Ends(own, offers, number, meet_s)
            return _patient(_core.Link.sockets(ends.connect(self._server), own), meet_s)
        pid, board = endpoint.pids[first], offers[0][0]
        try:
            there = os.open(f"/proc/{pid}/fd/{board}", os.O_RDWR)
        except OSError as error:
            raise PyflowError(
                f"rank {endpoint.rank}: cannot share memory with rank {first} on "
                f"{endpoint.hosts[first]}: {error.strerror}; start both as one user"
            ) from None
        try:
            link = _core.Link.shared(there, own, len(ranks), number * _board_nbytes())
            return _patient(link, meet_s)
        finally:
            os.close(there)


def _board_nbytes() -> int:
    """Of a link's memory, in whole pages."""
    return -(-_core.Link.shared_nbytes(MAX_MEMBERS) // _PAGE) * _PAGE


def _patient(link: _core.Link, late_s: float) -> _core.Link:
    """A link that waits so long in a step: heartbeats find a lost member before."""
    link.set_deadline(round(1000 * late_s))
    return link


def _addresses() -> list[str]:
    """Where others may reach this machine, the address of itself alone last."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        each.address
        for name, all_of in psutil.net_if_addrs().items()
        for each in all_of
        if name in up and each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    return [*found[: _N_ADDRESSES - 1], "127.0.0.1"]


@dataclass(slots=True)
class _Ends:
    """Sockets to the members before this one, which it calls, and to those after, which call it."""

    own: int
    offers: Sequence[tuple[int, int, bytes, bytes]]
    number: int
    meet_s: float
    _found: dict[int, socket.socket] = field(default_factory=dict)

    def connect(self, server: socket.socket) -> list[int]:
        accepting = Thread(target=self._accept, args=(server,), daemon=True)
        accepting.start()
        for member in range(self.own):
            _, port, key, packed = self.offers[member]
            self._found[member] = self._dial(packed, port, key)
        accepting.join()
        if len(self._found) + 1 < len(self.offers):
            missing = sorted({*range(len(self.offers))} - {self.own, *self._found})
            raise PyflowError(f"group: members {missing} have not called member {self.own}")
        n = len(self.offers)
        return [self._found[m].detach() if m != self.own else -1 for m in range(n)]

    def _dial(self, packed: bytes, port: int, key: bytes) -> socket.socket:
        """A connection to whoever answers the greeting at one of these addresses."""
        tried = [socket.inet_ntoa(packed[i : i + 4]) for i in range(0, len(packed), 4)]
        tried = [address for address in tried if address != "0.0.0.0"]
        greeting = _GREETING.pack(key, self.own, self.number)
        until = time.monotonic() + self.meet_s
        while time.monotonic() < until:
            for address in tried:
                try:
                    end = socket.create_connection((address, port), timeout=_DIAL_S)
                    end.sendall(greeting)
                    if end.recv(1) == b"!":
                        end.sendall(b"!")  # still here
                        end.settimeout(None)
                        return end
                    end.close()
                except OSError:
                    continue
            time.sleep(_AGAIN_S)
        raise PyflowError(
            f"group: nobody answers at port {port} of {', '.join(tried)}; let ranks reach each "
            "other"
        )

    def _accept(self, server: socket.socket) -> None:
        waiting, until = {*range(self.own + 1, len(self.offers))}, time.monotonic() + self.meet_s
        while waiting and time.monotonic() < until:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                end, _ = server.accept()
                end.settimeout(_DIAL_S)
                key, member, number = _GREETING.unpack(end.recv(_GREETING.size, socket.MSG_WAITALL))
                expected = key == self.offers[self.own][2] and number == self.number
                if not expected or member not in waiting:
                    end.close()
                    continue
                end.sendall(b"!")
                if end.recv(1) != b"!":
                    end.close()
                    continue
                end.settimeout(None)
            except (OSError, struct.error):
                continue
            self._found[member] = end
            waiting.discard(member)
