"""`pyflow tokenize`: show the tokens of a text."""

from __future__ import annotations

import json

import click

from pyflow import catalogue, formats
from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.groups import as_json, flag, grouped, option
from pyflow.cli.terminal.output import print_json
from pyflow.text import printable
from pyflow.tokenizer import from_checkpoint


def _text(prompt: str | None, file: str | None, stdin: str | None) -> str:
    given = [source for source in (prompt, file, stdin) if source is not None]
    if len(given) != 1:
        raise click.UsageError("give the text once: -p TEXT, -f FILE, or - for standard input")
    return inputs.argument(prompt, "-p") if prompt is not None else inputs.read(given[0])


@click.command("tokenize")
@options.model
@grouped(
    "text",
    _text,
    option("-p --prompt", "The text."),
    option("-f --file", "A file with the text; - is standard input.", metavar="FILE"),
    inputs.stdin,
)
@flag("--no-bos", "Do not begin with BOS, even if the model does.")
@flag("--special", 'Read control tokens such as "<|im_end|>" in the text.')
@as_json
def command(
    *,
    model: str | None,
    text: str,
    no_bos: bool,
    special: bool,
    as_json: bool,
) -> None:
    """Print the tokens of a text, one per line: its id and its text.

    The text comes from -p, from -f, or from standard input (-).
    """
    path = catalogue.resolve(model or options.default_model())
    with options.printing_warnings():
        tokenizer = from_checkpoint(formats.open(path))
    ids = tokenizer.encode(text, add_special=not no_bos, parse_special=special)
    lost = sum(byte in tokenizer.missing_bytes for byte in text.encode())
    if lost:
        click.echo(
            f"warning: {path.name} has no token for {lost} of {len(text.encode())} bytes;"
            " they are left out",
            err=True,
        )
    pieces = [tokenizer.token_bytes(token) for token in ids]
    if as_json:
        tokens = [
            {"id": token, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)}
            for token, piece in zip(ids, pieces, strict=True)
        ]
        print_json({"n_tokens": len(ids), "ids": ids, "tokens": tokens})
        return
    for token, piece in zip(ids, pieces, strict=True):
        click.echo(f"{token:>8} {_show(piece)}")


def _show(piece: bytes) -> str:
    """Quoted text with escapes; bytes if it is not whole characters."""
    try:
        return printable(json.dumps(piece.decode("utf-8"), ensure_ascii=False))
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in piece)
