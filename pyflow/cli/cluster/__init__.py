"""`pyflow cluster`: a model on several machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pyflow.cli.cluster import check
from pyflow.cli.group import Group
from pyflow.cli.options import ranks
from pyflow.cli.options.finite import Finite
from pyflow.cli.options.groups import flag, option

if TYPE_CHECKING:
    from pyflow.cluster.supervise.hosts import Place

# Commands that can run on ranks.
_COMMANDS = ("generate", "chat", "bench", "serve")
_SAMPLING = ("generate", "chat")
# Options of `run` that no such command has.
_OWN = ("--restart", "--timeout", "--hosts")


@click.group("cluster", cls=Group)
def command() -> None:
    """Run a model on several machines, or on several processes of one.

    Each is a rank with some of the model's layers. MPI connects them: pip install
    'pyflow-llm[cluster]'.
    """


# What follows the command's name is the command's.
@command.command("run", context_settings={"allow_interspersed_args": False})
@ranks.places
@option(
    "--timeout timeout_s",
    "Seconds without a heartbeat after which a rank is lost.",
    metavar="S",
    type=Finite(1, 86_400),
    default=30.0,
)
@flag("--restart", "After the loss of a rank, restart without its machine and continue the text.")
@option(
    "--layout",
    "S stages, each shared by M ranks, or auto: the same as --layout of COMMAND.",
    metavar="SxM|auto",
)
@click.argument("arguments", metavar="-- COMMAND ...", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    places: list[Place] | None,
    timeout_s: float,
    restart: bool,
    layout: str | None,
    arguments: tuple[str, ...],
) -> int:
    """Run generate, chat, bench or serve on N ranks of this machine or on the hosts of FILE.

    Rank 0 is on this machine and has its terminal. When a rank dies, or sends no heartbeat for S
    seconds, all ranks are ended, one message names the lost one, and the exit code is 5.
    """
    from pyflow.cluster.supervise.launcher import Launcher
    from pyflow.cluster.supervise.restarts import supervise
    from pyflow.sampling import SamplingParams

    if places is None:
        raise click.UsageError("expected -n N or --hosts FILE, found neither")
    if not arguments or arguments[0] not in _COMMANDS:
        raise click.UsageError(f"expected -- and one of {', '.join(_COMMANDS)} with its options")
    if misplaced := next((name for name in _OWN if name in arguments), None):
        raise click.UsageError(f"{misplaced} belongs before {arguments[0]}")
    if restart and arguments[0] == "chat" and sys.stdin.isatty():
        raise click.UsageError(
            "--restart cannot be used with a chat at a terminal, as typed text is not replayed; "
            "leave it out, or pipe one question in"
        )
    if layout is not None:
        arguments = (arguments[0], "--layout", layout, *arguments[1:])
    if restart and arguments[0] in _SAMPLING:
        # All starts draw the same. A seed of the user comes later on the line, and wins.
        seed = str(SamplingParams().seeded().seed)
        arguments = (arguments[0], "--seed", seed, *arguments[1:])
    return supervise(
        Launcher(),
        ["pyflow", *arguments],
        places,
        timeout_s=timeout_s,
        restart=restart,
        say=lambda text: click.echo(text, err=True),
    )


command.add_command(check.command)
