"""`pyflow cluster`: a model on several machines."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pyflow.cli import Group
from pyflow.cli.cluster import check as cluster_check
from pyflow.cli.options import ranks
from pyflow.cli.options.finite import Finite

# Commands that know what ranks are.
_COMMANDS = ("generate", "chat", "bench")
_SAMPLING = ("generate", "chat")
# Options that no such command has.
_OWN = ("--restart", "--timeout", "--hosts")


@click.group("cluster", cls=Group)
def command() -> None:
    """Run a model on several machines, or on several processes of one.

    Each is a rank with some of the model's layers. MPI connects them: pip install
    'pyflow-llm[cluster]'.
    """


# What follows the command's name is the command's.
@command.command("run", context_settings={"allow_interspersed_args": False})
@ranks.n_ranks
@ranks.hosts
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=Finite(1, 86_400),
    default=30.0,
    help="Seconds without a sign of life after which a rank is lost.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="When a rank is lost, start again without its machine and go on where the text was.",
)
@click.argument("arguments", metavar="-- COMMAND ...", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    n_ranks: int | None,
    hosts: Path | None,
    timeout_s: float,
    restart: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run generate, chat or bench on N ranks of this machine or on the hosts of FILE.

    Rank 0 is on this machine and has its terminal. When a rank dies, or says nothing for S seconds,
    all are ended, one message names it, and the exit code is 5.
    """
    from pyflow.cluster.supervise.launcher import Launcher
    from pyflow.cluster.supervise.restarts import supervise
    from pyflow.sampling import SamplingParams

    places = ranks.places(n_ranks, hosts)
    if not arguments or arguments[0] not in _COMMANDS:
        raise click.UsageError(f"expected -- and one of {', '.join(_COMMANDS)} with its options")
    if misplaced := next((name for name in _OWN if name in arguments), None):
        raise click.UsageError(f"{misplaced} belongs before {arguments[0]}")
    if restart and arguments[0] == "chat" and sys.stdin.isatty():
        raise click.UsageError(
            "--restart: what is typed cannot be given again to a chat; leave it out, or pipe one "
            "question in"
        )
    if restart and arguments[0] in _SAMPLING:
        # Each start must draw alike. A seed that the user gives comes later and counts.
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


command.add_command(cluster_check.command)
