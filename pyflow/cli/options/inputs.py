"""Texts from the command line, from files and from standard input."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from pyflow.cli.options.groups import option
from pyflow.text import printable, unrepeated

T = TypeVar("T")
# No context holds a text of this size; endless files such as /dev/zero are refused here.
_MAX_BYTES = 1 << 28


def decode(raw: bytes, name: str) -> str:
    """Text from UTF-8; UsageError names the first byte that is not."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{name}: byte {error.start} (0x{raw[error.start]:02x}) is not UTF-8 text; "
            "convert it first, for example with 'iconv -t utf-8'"
        ) from None


def argument(text: str, name: str) -> str:
    """The text of an argument; bytes that are not UTF-8 arrive as lone surrogates."""
    return decode(text.encode("utf-8", "surrogateescape"), name)


def once(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Names and values of an option that may be repeated; UsageError for a name with two values."""
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found and found[name] != value:
            raise click.UsageError(
                f"{option}: {printable(name)} is given twice, as {found[name]!r:.60} and "
                f"{value!r:.60}; leave one out"
            )
        found[name] = value
    return found


def read(path: str) -> str:
    """The text of a file, or of standard input for `-`."""
    name = "standard input" if path == "-" else path
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise click.UsageError(f"{name}: cannot be read: {reason}") from None
    if len(raw) > _MAX_BYTES:
        raise click.UsageError(f"{name}: has more than {_MAX_BYTES:,} bytes; give a shorter text")
    return decode(raw, name)


def read_to_learn(path: str) -> str:
    """The text of a file that a model or a file is fitted to. UsageError: models are measured by
    it, and would look better than they are."""
    from pyflow.quant.wikitext2 import has_passage

    text = read(path)
    if has_passage(text):
        raise click.UsageError(
            f"{path}: has a passage of the test split of WikiText-2, on which perplexity is "
            "measured; fitted to it, a model would look better than it is: take another text"
        )
    return text


def _dash(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    if value not in (None, "-"):
        found = printable(argument(value or "", "the prompt"))
        raise click.UsageError(
            f"expected - for standard input, found {found!r:.60}; give the prompt with -p TEXT", ctx
        )
    return value


texts_file = option(
    "-f --file",
    "A file with a text per line; - is standard input.",
    metavar="FILE",
    short="A file with a text per line",
)
stdin = click.argument("stdin", metavar="[-]", required=False, callback=_dash)
"""The argument `-`, for standard input."""


def prompt(text: str | None, file: str | None, stdin: str | None) -> str:
    """The prompt of a command: -p, then the text of - or -f without its last line end."""
    parts = [] if text is None else [argument(text, "-p")]
    if file is not None and stdin is not None:
        raise click.UsageError("-f and - both give a prompt; leave one out")
    source = file if file is not None else stdin
    if source is None and text is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError(
                "expected a prompt: give -p TEXT, -f FILE, or - for standard input"
            )
        source = "-"
    if source is not None:
        parts.append(read(source).removesuffix("\n"))
    joined = "\n".join(parts)
    if not joined.strip():
        found = "holds nothing but blanks" if joined else "is empty"
        raise click.UsageError(f"the prompt {found}; give some text with -p, -f or -")
    return joined


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue."""

    text: str
    id: object = None
    """What its result is to be told by, as JSON; None is nothing."""


def json_lines(path: str) -> list[Prompt]:
    """The prompts of a file with one JSON text, or object with a text `prompt`, per line."""
    prompts = [
        Prompt(text, value.get("id") if isinstance(value, dict) else None)
        for text, value in _json_values(path, "prompt", ("prompt", "id"))
    ]
    if not prompts:
        raise click.UsageError(f"{path}: expected at least one prompt, found none")
    return prompts


def json_texts(path: str) -> list[str]:
    """The texts of a file with one JSON text, or object with a `text`, per line; other keys of
    objects are left aside."""
    return [text for text, _ in _json_values(path, "text", None)]


def texts(
    given: Sequence[str],
    file: str | None,
    *,
    jsonl: bool = False,
    blank: Literal["refuse", "keep", "drop"] = "refuse",
) -> list[str]:
    """The texts of a command line, and of a file with a text, or an object, a line; standard input
    is the file of objects unless there is one, and that of an only TEXT which is `-`.

    blank: what becomes of blank lines, where lines are texts. UsageError: there is no text, or one
    is blank.
    """
    if [*given] == ["-"] and file is None:
        given, file = (), "-"
    found = [argument(text, "TEXT") for text in given]
    for number, text in enumerate(found, start=1):
        if not text.strip():
            raise click.UsageError(f"TEXT {number}: expected some text, found nothing but blanks")
    if jsonl:
        found += json_texts("-" if file is None else file)
    elif file is not None:
        found += _lines(file, blank)
    if not any(text.strip() for text in found):
        raise click.UsageError("expected some text: give TEXT, -f FILE, or -f - for standard input")
    return found


def _lines(path: str, blank: Literal["refuse", "keep", "drop"]) -> list[str]:
    lines = read(path).removesuffix("\n").split("\n")
    number = next((n for n, line in enumerate(lines, start=1) if not line.strip()), None)
    if number is not None and blank == "refuse" and len(lines) > 1:
        name = "standard input" if path == "-" else path
        raise click.UsageError(f"{name}, line {number}: expected some text, found a blank line")
    return [line for line in lines if line.strip()] if blank == "drop" else lines


def _json_values(path: str, key: str, known: Sequence[str] | None) -> Iterator[tuple[str, object]]:
    """The text of each line, which may be under `key`, and the whole value.

    known: all keys that an object may have; None: any. UsageError, naming the line.
    """
    # Not splitlines(): it also splits at characters that JSON texts may contain.
    for number, line in enumerate(read(path).removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        value = _json_value(line, where)
        if isinstance(value, dict) and known is not None:
            _check_keys(value, where, known)
        text = value.get(key) if isinstance(value, dict) else value
        if not isinstance(text, str) or not text.strip():
            raise click.UsageError(
                f'{where}: expected a text, not empty, or {{"{key}": TEXT}}, found {line[:60]}'
            )
        yield text, value


def _json_value(line: str, where: str) -> Any:
    try:
        value = json.loads(line, object_pairs_hook=unrepeated, parse_constant=_finite)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise click.UsageError(f"{where}: is nested too deeply") from None
    except UnicodeEncodeError as error:
        raise click.UsageError(
            f"{where}: expected Unicode text, found half a character, "
            f"{ascii(error.object[error.start])[1:-1]}"
        ) from None
    except json.JSONDecodeError as error:
        raise click.UsageError(f"{where}, column {error.colno}: is not JSON: {error.msg}") from None
    except ValueError as error:  # a number of too many digits
        raise click.UsageError(f"{where}: is not JSON: {error}") from None
    return value


def _finite(word: str) -> None:
    raise ValueError(f"expected a finite number, found {word}")


def _check_keys(request: Mapping[str, object], where: str, known: Sequence[str]) -> None:
    """UsageError for a key that would have no effect."""
    for key in request:
        if key not in known:
            near = difflib.get_close_matches(key.lower(), known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise click.UsageError(
                f"{where}: unknown key {key!r:.60}{hint}; expected {', '.join(known)}; options of"
                " the command, such as --seed, hold for all prompts"
            )
