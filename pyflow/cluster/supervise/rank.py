"""A supervised rank.

usage: python -m pyflow.cluster.supervise.rank NAME HOST TIMEOUT NUMBERS FOLDER MODULE ARG...

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
from pyflow.cluster.supervise.lifeline import EXIT_LOST, Loss, Numbers, die_with_parent, here


def main(
    supervisor: str, host: str, timeout: str, numbers: str, folder: str, module: str, *args: str
) -> int:
    """Returns the exit code of `python -m MODULE ARGS`."""
    rank = rank_of(os.environ)
    if rank is None:
        sys.exit(f"{sys.argv[0]}: none of {', '.join(RANK_VARIABLES)} is set: mpiexec starts this")
    _be_a_process_of_its_own()
    here.timeout_s, here.is_supervised = float(timeout), True
    here.numbers = Numbers.read(numbers)
    if socket.gethostname() == host:
        try:
            fds = here.join(supervisor, rank)
        except OSError as error:
            why = f"the supervisor has gone, or is on another machine that is called {host} too"
            print(f"{supervisor}: {error}: {why}", file=sys.stderr)
            return EXIT_LOST
        _take(fds)
    else:
        print(STARTED.format(rank=rank, host=here.host), end="", flush=True)
    Thread(target=_end_with_launcher, args=(rank,), daemon=True).start()
    with suppress(OSError):  # another machine need not have it, if no path is given from there
        os.chdir(folder)
    sys.argv = [module, *args]
    code = 1
    try:
        # What came before would have found nobody to end it with 130.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
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
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(here.timeout_s))  # MPI waits for the others for ever
    return code


def _be_a_process_of_its_own() -> None:
    """The shell that guards it has it ignore interrupts, and would leave it behind."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Also one that is stopped; mpiexec, which ends the shell, does not know of it.
    die_with_parent()
    if os.getppid() == 1:
        os._exit(EXIT_LOST)


def _end_with_launcher(rank: int) -> None:
    """What mpiexec has started on this machine reads this output until it ends itself."""
    poll = select.poll()
    poll.register(1, 0)
    poll.poll()
    here.lose(Loss(rank, here.host, here.phase, "has lost the mpiexec that started it"))
    os._exit(EXIT_LOST)


def _take(fds: list[int]) -> None:
    """Standard input, output and error of the supervisor, and its journal if it keeps one.

    Output is Python's alone: what MPI's libraries write still goes to mpiexec.
    """
    if not fds:
        return
    os.dup2(fds[0], 0)
    # Python's own were made for what was there before: a terminal wants lines at once.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(fds[1], "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(fds[2], "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    here.journal = next(iter(fds[3:]), None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
