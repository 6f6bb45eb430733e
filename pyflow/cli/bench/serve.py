"""`pyflow bench serve`: how a server does with many users."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from pyflow.cli.bench.plot import plot
from pyflow.cli.options.finite import Finite, Whole
from pyflow.cli.options.groups import grouped, option, output
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.errors import PyflowError
from pyflow.serve.load.client import Sample, Target, get
from pyflow.serve.load.mixes import MIXES
from pyflow.serve.load.run import Load, measured, run
from pyflow.text import markdown_table

_GOALS = ("ttft", "itl", "tpot", "e2e")


def _users(_ctx: click.Context, _param: click.Parameter, value: str) -> list[int]:
    try:
        users = [int(part) for part in value.split(",")]
    except ValueError:
        users = []
    if not users or min(users) < 1 or max(users) > 1024:
        raise click.BadParameter(f"expected numbers from 1 to 1024, as in 1,4,8; found {value!r}")
    return users


def _goals(_ctx: click.Context, _param: click.Parameter, value: str | None) -> dict[str, float]:
    goals = {}
    for part in value.split(",") if value else ():
        name, _, most = part.partition(":")
        try:
            goals[name] = float(most)
        except ValueError:
            name = ""
        if name not in _GOALS or not goals[name] > 0:
            raise click.BadParameter(f"expected as in ttft:500,tpot:100, found {value!r}")
    return goals


@dataclass(frozen=True, slots=True)
class _Loads:
    """What is asked for, of each server."""

    loads: list[Load]
    warm_up: Load
    rounds: int
    goals: dict[str, float]


def _loads(
    *,
    mix: str,
    users: list[int],
    rate: tuple[float, ...],
    requests: int,
    max_tokens: int,
    seed: int,
    **more: Any,
) -> _Loads:
    how: dict[str, Any] = {"mix": mix, "n_predict": max_tokens, "timeout_s": more["timeout"]}
    loads = [Load(n_users=n, n_requests=max(requests, 2 * n), seed=seed, **how) for n in users]
    if rate:
        loads = [Load(rate=r, n_requests=requests, seed=seed, **how) for r in rate]
    warm_up = Load(n_users=1, n_requests=2, seed=seed + 1, **how)
    return _Loads(loads, warm_up, more["rounds"], more["goodput"])


loads = grouped(
    "loads",
    _loads,
    option("--mix", "What users ask for.", type=click.Choice([*MIXES]), default="chat"),
    option(
        "--users",
        "Users at once, each of whom asks again when the answer has come.",
        default="1,4,8,16",
        callback=_users,
        metavar="N,...",
        short="Users at once; 1,4,8,16",
    ),
    option(
        "--rate",
        "In place of users: requests per second, at random times; may be given several times.",
        type=Finite(1e-3),
        multiple=True,
    ),
    option(
        "-n --requests",
        "Requests of each load, and at least two per user.",
        type=Whole(1, 100_000),
        default=32,
        short="Requests of each load; 32",
    ),
    option(
        "--max-tokens",
        "Tokens of an answer at most.",
        type=Whole(1),
        default=128,
        short="Tokens of an answer at most; 128",
    ),
    option("--seed", "Of questions and of times.", type=Whole(0), default=1),
    option("--timeout", "Seconds for one answer.", type=Finite(1), default=600.0),
    option(
        "-r --rounds",
        "Rounds; with several servers each second round is made in reverse order.",
        type=Whole(1, 100),
        default=1,
    ),
    option(
        "--goodput",
        "Count requests that meet these, in milliseconds: ttft, itl, tpot, e2e.",
        metavar="NAME:MS,...",
        callback=_goals,
    ),
    topic="load",
)


@click.command("serve")
@click.argument("urls", nargs=-1, metavar="[[LABEL=]URL]...")
@option("-m --model", "Start a server for this model, if no URL is given.", metavar="MODEL")
@option("--model-name", "The model to ask the servers for.", metavar="NAME")
@option("--key", "The servers' key.", metavar="KEY", envvar="PYFLOW_API_KEY")
@loads
@option("--plot", "Draw tokens per second and gaps into this SVG file.", metavar="FILE")
@output("md", "json")
def command(
    *,
    urls: tuple[str, ...],
    model: str | None,
    model_name: str | None,
    key: str | None,
    loads: _Loads,
    plot: str | None,
    output: str,
) -> None:
    """Measure servers of OpenAI's API under load, as in http://127.0.0.1:8080/v1.

    ttft is the time from sending to the first text, itl the gaps between chunks of text, tpot the
    time per token after the first, e2e all of it. Tokens are those that the server counts.
    """
    if urls and model is not None:
        raise click.UsageError("-m starts a server, and cannot be used with a URL")
    with _servers(urls, model) as addresses:
        targets = [Target.parse(url, model=model_name, key=key) for url in addresses]
        results = asyncio.run(_measure(targets, loads))
    if plot is not None:
        _draw(plot, results)
    if output == "json":
        print_json(results, indent=2)
    else:
        click.echo(_table(results, goodput=bool(loads.goals)))


@contextmanager
def _servers(urls: Sequence[str], model: str | None) -> Iterator[Sequence[str]]:
    """The URLs, or that of a server that is started for the model and ended afterwards."""
    if urls:
        yield urls
        return
    command = [sys.executable, "-P", "-m", "pyflow", "serve", "--port", "0"]
    command += ["-m", model] if model else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = ""
            for line in process.stderr:
                if "http://" in line:
                    break
            if "http://" not in line:
                raise PyflowError(f"pyflow serve did not start: {line.strip() or 'it ended'}")
            yield [line[line.index("http://") :].strip()]
        finally:
            process.terminate()


async def _measure(targets: Sequence[Target], loads: _Loads) -> list[dict[str, Any]]:
    """By load and target, in turns."""
    rounds, goodput = loads.rounds, loads.goals
    names = [(await get(target, "/models"))["data"][0]["id"] for target in targets]
    for target in targets:
        await run(target, loads.warm_up)
    samples: dict[tuple[int, int], list[list[Sample]]] = {}
    n_all = rounds * len(targets) * sum(load.n_requests for load in loads.loads)
    n_before = 0
    with progress("measuring") as told:
        for i, load in enumerate(loads.loads):
            for number in range(rounds):
                order = [*range(len(targets))][:: -1 if number % 2 else 1]
                for t in order:
                    # Other questions in each round: an answer may be known already.
                    made = Load(**(asdict(load) | {"seed": load.seed + 1000 * number}))

                    def tell(done: int, _total: int, before: int = n_before) -> None:
                        told(before + done, n_all)

                    samples.setdefault((i, t), []).append(await run(targets[t], made, tell))
                    n_before += load.n_requests
    return [
        {
            "server": targets[t].name,
            "model": names[t],
            "load": load.name,
            "mix": load.mix,
            "users": load.n_users,
            "rate": load.rate,
            **measured([*itertools.chain(*samples[i, t])], goodput),
            **_rates([measured(found, goodput) for found in samples[i, t]]),
        }
        for i, load in enumerate(loads.loads)
        for t in range(len(targets))
    ]


def _rates(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of several rounds the rates' median, and what each was."""
    found = [each["tokens_per_second"] for each in rounds]
    return {
        "tokens_per_second": statistics.median(found),
        "tokens_per_second_rounds": found,
        "seconds": sum(each["seconds"] for each in rounds),
    }


def _table(results: Sequence[dict[str, Any]], *, goodput: bool) -> str:
    head = ["server", "mix", "load", "requests", "failed", "t/s", "ttft p50", "p99 ms"]
    head += ["itl p50", "p99 ms", "tpot p50 ms"]
    head += ["goodput/s"] if goodput else []
    rows = [
        [
            r["server"],
            r["mix"],
            r["load"],
            str(r["n_requests"]),
            str(r["n_failed"]),
            f"{r['tokens_per_second']:.1f}",
            *(f"{r[f'{name}_ms'][p]:.0f}" for name in ("ttft", "itl") for p in ("p50", "p99")),
            f"{r['tpot_ms']['p50']:.1f}",
            *([f"{r['goodput_per_second']:.2f}"] if goodput else []),
        ]
        for r in results
    ]
    notes = {error for r in results for error in r["errors"]}
    return "\n".join([markdown_table(head, rows, ["server", "mix", "load"]), *sorted(notes)])


def _draw(path: str, results: Sequence[dict[str, Any]]) -> None:
    def gaps(result: dict[str, Any]) -> float:
        return float(result["itl_ms"]["p99"])

    def rate(result: dict[str, Any]) -> float:
        return float(result["tokens_per_second"])

    servers = dict.fromkeys(r["server"] for r in results)
    lines = {
        name: {
            server: [(r["users"] or r["rate"], value(r)) for r in results if r["server"] == server]
            for server in servers
        }
        for name, value in (("tokens per second", rate), ("gap between chunks, p99, ms", gaps))
    }
    x = "users" if results[0]["users"] else "requests per second"
    try:
        Path(path).write_text(plot(lines, x), encoding="utf-8")
    except OSError as error:
        raise PyflowError(f"{path}: cannot be written: {error.strerror}") from None
