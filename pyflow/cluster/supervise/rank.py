"""A supervised rank.

usage: python -m pyflow.cluster.supervise.rank NAME HOST TIMEOUT NUMBERS GPUS FOLDER MODULE ARG...

GPUS are those of all ranks, with a blank between two, and nothing for a rank without one.

Imports as little as possible before it is known to its supervisor. Rank 0 is given the terminal, or
whatever the supervisor's own input and output are.
"""

from __future__ import annotations

import math
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from threading import Thread

from pyflow.cluster.supervise.launcher import RANK_VARIABLES, STARTED, rank_of
from pyflow.cluster.supervise.lifeline import (
    EXIT_LOST,
    Loss,
    Numbers,
    RankReporter,
    die_with_parent,
    of_process,
)

# So many times as long as others may be silent, a rank that is done waits for them.
_PATIENCE = 10


def main(
    supervisor: str,
    host: str,
    timeout: str,
    numbers: str,
    gpus: str,
    folder: str,
    module: str,
    *args: str,
) -> int:
    """Returns the exit code of `python -m MODULE ARGS`."""
    rank = rank_of(os.environ)
    if rank is None:
        sys.exit(f"{sys.argv[0]}: none of {', '.join(RANK_VARIABLES)} is set: mpiexec starts this")
    _be_a_process_of_its_own()
    reporter = of_process()
    reporter.timeout_s, reporter.is_supervised = float(timeout), True
    reporter.numbers, reporter.gpu = Numbers.read(numbers), gpus.split(" ")[rank]
    if socket.gethostname() == host:
        try:
            fds = reporter.join(supervisor, rank)
        except OSError as error:
            why = f"the supervisor has gone, or is on another machine that is called {host} too"
            print(f"{supervisor}: {error}: {why}", file=sys.stderr)
            return EXIT_LOST
        reporter.journal = _take(fds)
    else:
        print(STARTED.format(rank=rank, host=reporter.host), end="", flush=True)
    Thread(target=_end_with_launcher, args=(rank, reporter), daemon=True).start()
    with suppress(OSError):  # another machine needs the folder only if a path is relative to it
        os.chdir(folder)
    sys.argv = [module, *args]
    code = 1
    try:
        # An earlier interrupt would have ended this process without exit code 130.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except KeyboardInterrupt:
        code = 130
    finally:
        with suppress(OSError, ValueError):  # the reader has gone, or the stream is closed
            sys.stdout.flush()
        reporter.end(code)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # MPI may wait for the others forever. Without an error they may still have work.
        signal.alarm(math.ceil(reporter.timeout_s * (1 if code else _PATIENCE)))
    return code


def _be_a_process_of_its_own() -> None:
    """Undoes what the guard shell sets: it ignores interrupts, and would leave this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Also if it is stopped: mpiexec, which ends the shell, does not know this process.
    die_with_parent()
    if os.getppid() == 1:
        os._exit(EXIT_LOST)


def _end_with_launcher(rank: int, reporter: RankReporter) -> None:
    """Ends this rank when mpiexec's proxy, which reads its output, has ended."""
    poll = select.poll()
    poll.register(1, 0)
    poll.poll()
    why = "has lost the mpiexec that started it"
    reporter.lose(Loss(rank, reporter.host, reporter.phase, why))
    os._exit(EXIT_LOST)


def _take(fds: list[int]) -> int | None:
    """Takes the supervisor's standard input, output and error. Returns its journal, if it has one.

    Only Python's output moves: MPI's libraries still write to mpiexec.
    """
    if not fds:
        return None
    os.dup2(fds[0], 0)
    # Python's own streams were made for the former files: a terminal needs line buffering.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(fds[1], "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(fds[2], "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    return next(iter(fds[3:]), None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
