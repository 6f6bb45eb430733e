"""`pyflow replay`: repeat the requests that a server has recorded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pyflow.cli.options import model
from pyflow.cli.options.groups import flag, output
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.cli.serve import missing
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.text import counted, printable


@click.command("replay", cls=TopicCommand)
@click.argument("file", metavar="FILE")
@run_options(
    model.model,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
    model.cache_type,
)
@flag("--guardrail", "The requests were recorded with it.")
@output("text", "json")
def command(*, file: str, run: RunOptions, guardrail: bool, output: str) -> None:
    """Repeat the requests of a file that 'pyflow serve --record FILE' has written.

    Each is made alone. Its answer must be the recorded one to the last bit, whatever ran beside it
    then, but for names, times and cached_tokens. The exit code is 1 if one differs.
    """
    try:
        from pyflow.serve.record.exchange import read
        from pyflow.serve.replay import replay
        from pyflow.serve.settings import Settings
        from pyflow.serve.shelf import name_of
    except ModuleNotFoundError as error:
        raise missing(error) from None
    name = name_of(run.model or model.default_model())
    settings = Settings(cache_type=run.cache_type, guardrail=guardrail)
    with run.load() as loaded, progress("replaying") as told:
        found = []
        exchanges = [*read(Path(file))]
        for each in replay(name, loaded, settings, iter(exchanges)):
            found.append(each)
            told(len(found), len(exchanges))
    n_differ = sum(bool(each.differs) for each in found)
    if output == "json":
        print_json([asdict(each) for each in found])
    else:
        for each in found:
            for place in each.differs[:5]:
                click.echo(printable(f"request {each.number}, {each.path}: {place}"))
        same = len(found) - n_differ
        click.echo(f"{counted(len(found), 'request')}: {same} the same to the last bit")
    if n_differ:
        raise SystemExit(1)
