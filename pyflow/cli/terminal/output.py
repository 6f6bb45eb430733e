"""JSON, and errors in one line."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TextIO, cast

import click

from pyflow.cli.group import of_command
from pyflow.errors import PyflowError
from pyflow.text import printable


class _Dropping:
    """Standard error, which drops what cannot be written: it must not change how a command ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Sends what is buffered, and all that follows, nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._stream.flush()


@contextmanager
def dropping_what_fails() -> Iterator[None]:
    """Meanwhile standard error that is full or closed, such as a terminal that hung up, is no
    error."""
    before = sys.stderr
    sys.stderr = cast("TextIO", _Dropping(before))
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = before


def print_json(value: object, *, indent: int | None = None) -> None:
    """Prints one JSON text; numbers that JSON lacks are null, and invalid UTF-8 is escaped.

    With an inexact device, each object says so.
    """
    if told := of_command():
        told.json = True
        if told.inexact:
            each = {"inexact": told.inexact}
            if isinstance(value, list):
                value = [item | each if isinstance(item, dict) else item for item in value]
            elif isinstance(value, dict):
                value = value | each
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
    """The message of an error; an error that pyflow does not raise is a fault of pyflow."""
    if isinstance(error, OSError) and error.strerror:
        # An error without a file name is about standard output.
        return f"{error.filename or 'standard output'}: {error.strerror}"
    if isinstance(error, (PyflowError, MemoryError, OSError)):
        return str(error) or "out of memory"
    return (
        f"{type(error).__name__}: {error}; this is a fault of pyflow: report it with what "
        "PYFLOW_DEBUG=1 shows"
    )


def asks_for_json(args: Sequence[str]) -> bool:
    """Whether a command line, even an invalid one, asks for JSON."""
    return not {"--json", "--jsonl", "-ojson", "--output=json"}.isdisjoint(args) or any(
        option in ("-o", "--output") and value == "json" for option, value in pairwise(args)
    )


def error_object(error: BaseException, message: str) -> dict[str, str]:
    """An error for programs: its class, of pyflow, Python or UsageError, and its message."""
    if isinstance(error, click.ClickException):
        kind = "UsageError" if isinstance(error, click.UsageError) else "ClickException"
    else:
        public = (c for c in type(error).__mro__ if c.__module__ in ("pyflow.errors", "builtins"))
        kind = next(public).__name__
    return {"type": kind, "message": " ".join(message.split())}


def print_error(message: str) -> None:
    """Prints one line on standard error, whatever the message quotes."""
    if os.environ.get("PYFLOW_DEBUG"):
        traceback.print_exc()
    click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
