"""What goes to the screen in a fixed form: JSON, and errors in one line."""

from __future__ import annotations

import json
import math
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import click

from pyflow.errors import PyflowError
from pyflow.text import printable


@dataclass(slots=True)
class Told:
    """What a command line has put on standard output; the `obj` of its contexts."""

    json: bool = False


def print_json(value: object, *, indent: int | None = None) -> None:
    """One JSON text on standard output; numbers that JSON lacks, such as infinity, are null, and
    bytes in texts that were not UTF-8, as in names of files, are spelt out."""
    context = click.get_current_context(silent=True)
    if context is not None and isinstance(context.obj, Told):
        context.obj.json = True
    click.echo(json.dumps(_plain(value), indent=indent, allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def describe(error: Exception) -> str:
    """What to tell of an error: a fault of ours where it is not one that we raise."""
    if isinstance(error, OSError) and error.strerror:
        # What is not about a file with a name is about the one that all text goes to.
        return f"{error.filename or 'standard output'}: {error.strerror}"
    if isinstance(error, (PyflowError, MemoryError, OSError)):
        return str(error) or "out of memory"
    return (
        f"{type(error).__name__}: {error}; this is a fault of pyflow: report it with what "
        "PYFLOW_DEBUG=1 shows"
    )


def asks_for_json(args: Sequence[str]) -> bool:
    """Whether a command line, which may be too wrong to be parsed, has --json or the like."""
    return not {"--json", "--jsonl", "-ojson", "--output=json"}.isdisjoint(args) or any(
        option in ("-o", "--output") and value == "json" for option, value in pairwise(args)
    )


def error_object(error: BaseException, message: str) -> dict[str, str]:
    """What a program is told of an error: the class that it may catch, be it ours, Python's or
    UsageError for a wrong command line, and the message of the screen."""
    if isinstance(error, click.ClickException):
        kind = "UsageError" if isinstance(error, click.UsageError) else "ClickException"
    else:
        public = (c for c in type(error).__mro__ if c.__module__ in ("pyflow.errors", "builtins"))
        kind = next(public).__name__
    return {"type": kind, "message": " ".join(message.split())}


def print_error(message: str) -> None:
    """One line on standard error, whatever the message quotes."""
    if os.environ.get("PYFLOW_DEBUG"):
        traceback.print_exc()
    click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
