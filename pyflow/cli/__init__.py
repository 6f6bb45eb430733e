"""The `pyflow` command: the list of commands, and exit codes.

A command `name` is the click command `command` of pyflow/cli/name.py, or of a package of that name,
and is loaded when it is used; a module has _ where a command has -. A loaded module is a name in
this file too, such as `list`.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import click

from pyflow.cli.group import Group, PipeClosedError, Told
from pyflow.cli.terminal.output import (
    asks_for_json,
    describe,
    dropping_what_fails,
    error_object,
    print_error,
    print_json,
)
from pyflow.cli.terminal.signals import exit_code
from pyflow.errors import (
    FilesWarning,
    FormatError,
    LostRankError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VariableError,
)

# The order of `pyflow --help`.
COMMANDS = {
    "chat": "Talk with a model.",
    "generate": "Continue a text, or answer one question.",
    "serve": "Answer many users over HTTP, by the API of OpenAI.",
    "replay": "Repeat requests that a server has recorded.",
    "embed": "Turn texts into vectors, to compare them by meaning.",
    "translate": "Print what an encoder-decoder writes for each text.",
    "rerank": "Sort documents by how well they answer a query.",
    "moderate": "Sort texts into acceptable and harmful ones.",
    "pull": "Fetch a model into the cache.",
    "list": "List the models that can be pulled, and those that have been.",
    "rm": "Delete a pulled model.",
    "tokenize": "Show the tokens of a text.",
    "inspect": "Show what is in a model file, and whether it fits into memory.",
    "spec": "Check a model's files against its specification.",
    "quantize": "Write a model with fewer bits per weight.",
    "imatrix": "Measure the importance of the columns of a model's matrices.",
    "train-speculator": "Train a small network that drafts for a model.",
    "eval": "Measure how well a model predicts text.",
    "bench": "Measure how fast a model runs here.",
    "cluster": "Run a model on several machines.",
    "doctor": "Show what pyflow found on this machine.",
}


class _Commands(Group):
    """Loads a command when it is asked for, so that `pyflow --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.commands and name in COMMANDS:
            module = name.replace("-", "_")
            self.add_command(importlib.import_module(f"pyflow.cli.{module}").command, name)
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="pyflow-llm", message="pyflow %(version)s")
def cli() -> None:
    """Run quantized language models on the CPU.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the model file cannot be used, 4 too little
    memory, 5 a rank of a cluster was lost, 130 interrupted; 143 and 129 if SIGTERM and SIGHUP
    interrupt a command that has files to delete or a session to save.

    With --json, --jsonl or -o json, a command that ends with 1 to 5 also prints {"error": {"type":
    ..., "message": ...}} on standard output, unless it has printed other JSON. The type is a class
    of pyflow.errors or of Python, or UsageError.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line, by default the process's own; returns the exit code."""
    _open_closed_streams()
    with dropping_what_fails():
        return _main(args)


def _main(args: Sequence[str] | None) -> int:
    args = sys.argv[1:] if args is None else args
    told = Told()
    try:
        # Characters that the terminal cannot encode must not end a generation.
        for output in (sys.stdout, sys.stderr):
            getattr(output, "reconfigure", lambda **_: None)(errors="replace")
        with _printing_warnings():
            code = cli.main(args, prog_name="pyflow", standalone_mode=False, obj=told)
        if told.inexact:
            click.echo(f"inexact: {told.inexact}", err=True)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, PipeClosedError):
        _drop_output()  # the reader has closed its end
        return 0
    except (Exception, KeyboardInterrupt) as error:
        code, message = _ending(error, args)
        if message:
            as_json = not told.json and asks_for_json(args) and not _is_silent(args)
            _tell(error, message, as_json=as_json)
        return code


@contextmanager
def _printing_warnings() -> Iterator[None]:
    """Prints warnings about a model's files as one line each, wherever it is opened."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if (text := str(message)) not in seen:
            seen.add(text)
            click.echo(f"warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", FilesWarning)
        warnings.showwarning = cast("Any", show)
        yield


def _ending(error: BaseException, args: Sequence[str]) -> tuple[int, str]:
    """The exit code, and the message, if it has not been printed yet."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        cause = error.__context__
        if error.__cause__ is None and isinstance(cause, (EOFError, KeyboardInterrupt)):
            click.echo(err=True)  # end the line of the question
        if isinstance(cause, EOFError):
            return 1, "no answer was given"
        if isinstance(error, click.Abort) and cause is None:
            return 1, "aborted"
    elif isinstance(error, click.UsageError):
        if _is_silent(args):
            return 2, ""
        command = error.ctx.command_path if error.ctx else "pyflow"
        return 2, f"{error.format_message().rstrip('.')} (see '{command} --help')"
    elif isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    elif isinstance(error, Exception) and not _is_interruption(error):
        return _exit_code(error), describe(error)
    with suppress(OSError):  # a terminal that hung up
        click.echo("interrupted", err=True)
    return exit_code(error), ""


def _is_silent(args: Sequence[str]) -> bool:
    """Whether rank 0 prints the same."""
    from pyflow.cli.options.pipeline import is_silent

    return is_silent(args)


def _tell(error: BaseException, message: str, *, as_json: bool) -> None:
    """Prints one line on standard error, and one object on standard output if it is open."""
    try:
        if as_json:
            print_json({"error": error_object(error, message)})
        sys.stdout.flush()
    except OSError:
        _drop_output()
    print_error(message)


def _open_closed_streams() -> None:
    """Opens standard streams that were closed (`<&-`), which are None in Python.

    Reading finds nothing, and writing to standard output fails. In order, so that each takes its
    own descriptor before a model file does.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, open(fd, mode))  # noqa: SIM115, PTH123


def _drop_output() -> None:
    """Keeps the interpreter from writing the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused it; libraries raise ImportError if it interrupts their import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _exit_code(error: Exception) -> int:
    if isinstance(error, (ResourceError, MemoryError)):
        return 4
    if isinstance(error, LostRankError):
        return 5
    if isinstance(error, VariableError):
        return 2  # a wrong setting, not a model that cannot run
    return 3 if isinstance(error, (FormatError, ShapeError, UnsupportedError)) else 1
