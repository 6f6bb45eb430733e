"""mpiexec: finding it, its command line, and its reports of a death."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from pyflow.cluster.supervise.hosts import Place
from pyflow.errors import PyflowError

# What tells a process its rank: MPICH and Intel, PMIx, Open MPI, Slurm.
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
# A guard shell between mpiexec and a rank. It reports the rank's death before mpiexec notices and
# kills the other ranks, which would hide the first death. It stays for 5 s while its parent does:
# rank 0 may still have to report why it refuses what all ranks refuse.
_GUARD = """
"$@" & wait $!
code=$?
rank=${PMI_RANK-${PMIX_RANK-${OMPI_COMM_WORLD_RANK-$SLURM_PROCID}}}
if [ $code -gt 130 ]; then
  said="died of $((code - 128))"
elif [ $code -ne 0 ] && [ "$rank" != 0 ]; then
  said="ended with $code"
else
  exit $code
fi
printf '\\npyflow: rank %s on %s has %s\\n' "$rank" "$(uname -n)" "$said"
for i in 1 2 3 4 5 6 7 8 9 10; do
  sleep 0.5
  kill -0 $PPID 2>/dev/null || break
done
exit $code
"""
_ENDED = re.compile(r"pyflow: rank (\d+) on \S+ has ended with (\d+)\n")
# The first output of a rank on another machine, which has no other channel to its supervisor.
STARTED = "\npyflow: rank {rank} on {host} has started\n"
_STARTED = re.compile(STARTED.format(rank=r"(\d+)", host=r"(\S+)"))
# The place of an error in MPICH's mpiexec or its proxies.
_TRACE = re.compile(r"\[(mpiexec|proxy)\S*@\S+ \w+ \(\S+\): ")
# The guard above; MPICH and Intel, with or without a rank; Open MPI.
_DEATHS = (
    re.compile(r"pyflow: rank (?P<rank>\d+) on (?P<host>\S+) has died of (?P<signal>\d+)\n"),
    re.compile(r"(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)"),
    re.compile(r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)"),
)


@dataclass(frozen=True, slots=True)
class Death:
    """A report on the first process that failed."""

    rank: int | None
    pid: int | None
    host: str
    signal: int | None = None

    @property
    def why(self) -> str:
        """For people."""
        if self.signal is None:
            return "has died"
        try:
            return f"has died ({Signals(self.signal).name})"
        except ValueError:
            return f"has died (signal {self.signal})"


class Launcher:
    """The mpiexec of this environment, or else of the system."""

    def __init__(self) -> None:
        """PyflowError if there is none."""
        beside = Path(sys.executable).parent
        found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
        if found is None:
            raise PyflowError(
                f"mpiexec: expected one in {beside} or in PATH, found none: "
                "pip install 'pyflow-llm[cluster]'"
            )
        self.path = found
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
        self._is_open_mpi = bool(re.search("open ?mpi|open-mpi|prte", said, re.IGNORECASE))

    def command(self, places: Sequence[Place], program: Sequence[str]) -> list[str]:
        """The command that starts the program on all ranks, in a folder that every machine has."""
        command = [self.path, "--wdir", "/", "-n", str(sum(place.n for place in places))]
        hosts = ",".join(f"{place.host}:{place.n}" for place in places if place.host)
        if hosts:
            command += ["-H" if self._is_open_mpi else "-hosts", hosts]
        if self._is_open_mpi:
            # There may be more ranks than cores, and threads are placed by pyflow.
            command += ["--oversubscribe", "--bind-to", "none"]
        return [*command, "sh", "-c", _GUARD, "pyflow", *program]

    @staticmethod
    def environment() -> dict[str, str]:
        """This process's, but that Open MPI does not refuse root, whom MPICH never asks."""
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**root, **os.environ}


def started(output: str) -> dict[int, str]:
    """Ranks of other machines and their hosts, by what they have written."""
    return {int(number): host for number, host in _STARTED.findall(output)}


def ended(output: str) -> dict[int, int]:
    """Ranks that have ended by themselves but failed, and their exit codes; rank 0 tells itself."""
    return {int(number): int(code) for number, code in _ENDED.findall(output)}


def said_by(output: str) -> str:
    """The last lines of what ranks, ssh and mpiexec on other machines have written, for people."""
    lines = [line.strip() for line in output.split("\n") if line.strip(" =")]
    lines = [line for line in lines if not line.startswith("pyflow: rank ")]
    words = [line for line in lines if not _TRACE.match(line)]
    there = [_TRACE.sub("", line) for line in lines if line.startswith("[proxy")]
    return " ".join((words or there)[-3:])


def launch_failed(output: str) -> bool:
    """Whether MPICH has told that it could not reach a machine."""
    return "Launch proxy failed" in output


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The rank that a launcher has given to a process with this environment."""
    found = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(value) for value in found if value.isdecimal()), None)


def death(output: str) -> Death | None:
    """Who died first, by what the guards and mpiexec have written."""
    for pattern in _DEATHS:
        if match := pattern.search(output):
            found = match.groupdict()
            number = {name: int(found[name]) for name in found if (found[name] or "").isdecimal()}
            return Death(number.get("rank"), number.get("pid"), found["host"], number.get("signal"))
    return None
