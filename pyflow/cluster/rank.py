"""python -m pyflow.cluster.rank SOCKET HOST TIMEOUT MODULE ARGS...: a program as a supervised rank.

Imports as little as possible before it is known to its supervisor. Rank 0 is given the terminal, or
whatever the supervisor's own input and output are.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import socket
import sys
from contextlib import suppress

from pyflow.cluster.launcher import RANK_VARIABLES, rank_of
from pyflow.cluster.lifeline import EXIT_LOST, here

_PR_SET_PDEATHSIG = 1


def main(path: str, host: str, timeout: str, module: str, *args: str) -> int:
    """Returns the exit code of `python -m MODULE ARGS`."""
    rank = rank_of(os.environ)
    if rank is None:
        sys.exit(f"{sys.argv[0]}: none of {', '.join(RANK_VARIABLES)} is set: mpiexec starts this")
    _be_a_process_of_its_own()
    here.timeout_s = float(timeout)
    if socket.gethostname() == host:
        try:
            fds = here.join(path, rank)
        except OSError:
            return EXIT_LOST  # the supervisor has gone
        _take(fds)
    elif rank == 0:
        sys.exit(f"{path}: rank 0 must be on {host}, which started it, but is on {here.host}")
    sys.argv = [module, *args]
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except KeyboardInterrupt:
        code = 130
    finally:
        with suppress(OSError, ValueError):  # a reader that has gone, or a stream closed before
            sys.stdout.flush()
        here.end(code)
    return code


def _be_a_process_of_its_own() -> None:
    """The shell that guards it has it ignore interrupts, and would leave it behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Also one that is stopped; mpiexec, which ends the shell, does not know of it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(EXIT_LOST)


def _take(fds: list[int]) -> None:
    """Standard input, output and error of the supervisor, and its journal if it keeps one."""
    for at, fd in enumerate(fds[:3]):
        os.dup2(fd, at)
        os.close(fd)
    if fds:
        # Python's own were made for what was there before: a terminal wants lines at once.
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    here.journal = next(iter(fds[3:]), None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
