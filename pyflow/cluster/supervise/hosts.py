"""Files of hosts, as MPICH, Open MPI, Slurm and batch systems write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pyflow.errors import PyflowError

MAX_RANKS = 1024
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*@"
# One host or several: node1, node[1-3,07], and how many ranks: node1:2.
_HOST = re.compile(rf"((?:{_USER})?{_NAME})(?:\[([0-9,-]+)\](\.?{_NAME})?)?(?::(\d+))?", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_SLOTS = re.compile(r"\s*(slots|cpu|np)\s*=\s*(\d+)", re.ASCII)
_GPU = re.compile(r"\s*gpu=([^\s=]+)")
# What does not change which ranks run where.
_WITHOUT_EFFECT = re.compile(r"\s*(max[-_]slots)\s*=\s*\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A machine, as ssh takes it, and how many ranks it takes; host None is this one.

    gpus: the device of each rank, as --gpu names it, "" for none; or empty: no rank has one.
    """

    host: str | None
    n: int
    gpus: tuple[str, ...] = ()

    @property
    def gpu_of_each(self) -> tuple[str, ...]:
        return self.gpus or ("",) * self.n


def places_of(path: str | Path) -> list[Place]:
    """The places in a file: a line has NAME, NAME:N or NAME slots=N, for N ranks or for one.

    gpu=DEVICE behind that puts the layers of these ranks on a device of their machine. A host that
    comes again takes further ranks, as in the files of batch systems. NAME may stand for several,
    as node[1-3,7], and may begin with the user's name there, as me@node1. PyflowError for any other
    line, or if there is no host.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PyflowError(
            f"{path}: expected a text with a host per line, found bytes that are not UTF-8 from "
            f"byte {error.start:,} on"
        ) from None
    gpus: dict[str, list[str]] = {}  # of each rank, by host
    for number, line in enumerate(text.splitlines(), 1):
        if not (given := line.partition("#")[0].strip()):
            continue
        found = _of_line(given)
        if found is None:
            raise PyflowError(
                f"{path}: line {number}: expected a host such as 'node1', 'node1:2', 'node1 "
                f"slots=2', 'me@node1' or 'node1 gpu=0', found {given!r:.80}"
            )
        names, n, gpu = found
        for name in names:
            gpus.setdefault(name, []).extend([gpu] * n)
    if not gpus:
        raise PyflowError(f"{path}: expected a host per line, found none")
    if (total := sum(map(len, gpus.values()))) > MAX_RANKS:
        raise PyflowError(f"{path}: expected at most {MAX_RANKS:,} ranks, found {total:,}")
    return [Place(name, len(of), tuple(of) if any(of) else ()) for name, of in gpus.items()]


def _of_line(given: str) -> tuple[list[str], int, str] | None:
    """Hosts, the ranks of each, and their device."""
    match = _HOST.match(given)
    if match is None:
        return None
    slots, gpu, rest = match[4], "", given[match.end() :]
    while rest.strip():
        if (found := _SLOTS.match(rest)) and slots is None:
            slots = found[2]
        elif (found := _GPU.match(rest)) and not gpu:
            gpu = found[1]
        elif (found := _WITHOUT_EFFECT.match(rest)) is None:
            return None
        rest = rest[found.end() :]
    names = _expanded(match[1], match[2], match[3] or "")
    n = int(slots or 1)
    return (names, n, gpu) if names and 1 <= n <= MAX_RANKS else None


def _expanded(before: str, ranges: str | None, behind: str) -> list[str]:
    """The names that node[1-3,07] stands for; none for a range that runs backwards or too far."""
    if ranges is None:
        return [before]
    names: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or len(part) > 9:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MAX_RANKS:
            return []
        names += [f"{before}{i:0{len(match[1])}}{behind}" for i in range(first, last + 1)]
    return names
