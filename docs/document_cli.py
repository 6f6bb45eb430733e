"""Write docs/cli.md from the commands' own --help; with --check, say whether it is up to date."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pyflow.cli import cli

TARGET = Path(__file__).with_name("cli.md")
HEAD = """\
# Commands

Generated from `--help`: change the help texts and run `make docs`, not this file.
"""


def commands(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    """The help of a command and of all below it, one section each."""
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        terminal_width=100,
        max_content_width=100,
        **command.context_settings,
    )
    yield f"\n## {context.command_path}\n\n```text\n{context.get_help().rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            if below is not None and not below.hidden:
                yield from commands(below, context, child)


def document() -> str:
    text = HEAD + "".join(commands(cli, None, "pyflow"))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main(arguments: list[str]) -> int:
    new = document()
    if arguments != ["--check"]:
        TARGET.write_text(new)
        return 0
    old = TARGET.read_text() if TARGET.exists() else ""
    if old == new:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(old.splitlines(True), new.splitlines(True), "docs/cli.md", "--help")
    )
    print("docs/cli.md is not what --help says: run 'make docs' and commit it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
