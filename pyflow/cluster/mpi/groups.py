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
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Thread

import psutil

from pyflow import _core
from pyflow.cluster.mpi.endpoint import Endpoint
from pyflow.cluster.mpi.layers import Ranks, Splitter
from pyflow.errors import PyflowError

_OFFER = struct.Struct("<iH16s32s")  # file in memory, port, key, addresses
_N_ADDRESSES = 8
_GREETING = struct.Struct("<16sH")  # key and member
_DIAL_S, _MEET_S = 2.0, 60.0


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
    """A splitter that gives the layers of a group to its member 0. `split` sees groups as ranks."""

    split: Splitter
    n_members: int

    def __call__(self, ranks: Ranks) -> Sequence[range]:
        n, drafters = len(ranks.hellos), ranks.drafters
        leaders = [r for r in range(n) if group_of(r, n, self.n_members, drafters)[0] == r]
        own = [i for i, rank in enumerate(leaders) if rank in drafters]
        groups = Ranks([ranks.hellos[r] for r in leaders], ranks.spec, ranks.measure, own)
        held = dict(zip(leaders, self.split(groups), strict=True))
        return [held.get(rank, range(0)) for rank in range(n)]


@dataclass(frozen=True, slots=True)
class Roles:
    """What ranks do. drafters: these draft and hold no layers. n_members: ranks of a group."""

    drafters: Sequence[int] = ()
    n_members: int = 1


NO_ROLES = Roles()


@dataclass(slots=True)
class Meeting:
    """What a rank offers to the others of its group before anybody knows who is there.

    Made by all ranks before their endpoints, which exchange the offers.
    """

    roles: Roles
    _board: int = -1
    _server: socket.socket | None = None

    @property
    def offer(self) -> bytes:
        """Empty without groups."""
        if self.roles.n_members == 1:
            return b""
        if self._server is None:
            self._server = socket.create_server(("", 0))
            self._board = os.memfd_create("pyflow-group")
            os.ftruncate(self._board, _core.Link.shared_nbytes(self.roles.n_members))
        found = b"".join(map(socket.inet_aton, _addresses()))
        port = self._server.getsockname()[1]
        return _OFFER.pack(self._board, port, secrets.token_bytes(16), found)

    def close(self) -> None:
        """Takes the offer back."""
        if self._server is not None:
            self._server.close()
            os.close(self._board)

    def group(self, endpoint: Endpoint) -> Sequence[int]:
        return group_of(endpoint.rank, endpoint.size, self.roles.n_members, self.roles.drafters)

    def link(self, endpoint: Endpoint) -> _core.Link | None:
        """To the other members, which call this too; None: there are none.

        PyflowError if they cannot be reached.
        """
        ranks = self.group(endpoint)
        if len(ranks) == 1 or self._server is None:
            return None
        own, first = ranks.index(endpoint.rank), ranks[0]
        offers = [_OFFER.unpack(endpoint.offers[rank][: _OFFER.size]) for rank in ranks]
        with closing(self._server):
            if len({endpoint.hosts[rank] for rank in ranks}) > 1:
                return _core.Link.sockets(_connect(self._server, own, offers), own)
            pid, board = endpoint.pids[first], offers[0][0]
            try:
                there = os.open(f"/proc/{pid}/fd/{board}", os.O_RDWR)
            except OSError as error:
                raise PyflowError(
                    f"rank {endpoint.rank}: cannot share memory with rank {first} on "
                    f"{endpoint.hosts[first]}: {error.strerror}; start both as one user"
                ) from None
            try:
                return _core.Link.shared(there, own, len(ranks))
            finally:
                os.close(there)


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


def _connect(
    server: socket.socket, own: int, offers: Sequence[tuple[int, int, bytes, bytes]]
) -> list[int]:
    """Sockets to the members before, which this one calls, and to those after, which call it."""
    ends: dict[int, socket.socket] = {}
    accepting = Thread(target=_accept, args=(server, own, offers, ends), daemon=True)
    accepting.start()
    for member in range(own):
        _, port, key, packed = offers[member]
        ends[member] = _dial(packed, port, _GREETING.pack(key, own))
    accepting.join()
    if len(ends) + 1 < len(offers):
        missing = sorted({*range(len(offers))} - {own, *ends})
        raise PyflowError(f"group: members {missing} have not called member {own}")
    return [ends[m].detach() if m != own else -1 for m in range(len(offers))]


def _dial(packed: bytes, port: int, greeting: bytes) -> socket.socket:
    """A connection to whoever answers the greeting at one of these addresses."""
    tried = [socket.inet_ntoa(packed[i : i + 4]) for i in range(0, len(packed), 4)]
    tried = [address for address in tried if address != "0.0.0.0"]
    until = time.monotonic() + _MEET_S
    while time.monotonic() < until:
        for address in tried:
            try:
                end = socket.create_connection((address, port), timeout=_DIAL_S)
                end.sendall(greeting)
                if end.recv(1) == b"!":
                    end.settimeout(None)
                    return end
                end.close()
            except OSError:
                continue
        time.sleep(0.1)
    raise PyflowError(
        f"group: nobody answers at port {port} of {', '.join(tried)}; let ranks reach each other"
    )


def _accept(
    server: socket.socket,
    own: int,
    offers: Sequence[tuple[int, int, bytes, bytes]],
    ends: dict[int, socket.socket],
) -> None:
    waiting, until = {*range(own + 1, len(offers))}, time.monotonic() + _MEET_S
    while waiting and time.monotonic() < until:
        server.settimeout(max(0.01, until - time.monotonic()))
        try:
            end, _ = server.accept()
            end.settimeout(_DIAL_S)
            key, member = _GREETING.unpack(end.recv(_GREETING.size, socket.MSG_WAITALL))
            if key != offers[own][2] or member not in waiting:
                end.close()
                continue
            end.sendall(b"!")
            end.settimeout(None)
        except (OSError, struct.error):
            continue
        ends[member] = end
        waiting.discard(member)
