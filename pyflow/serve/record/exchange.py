"""What a record holds, and which answers are the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyflow.errors import PyflowError

_LOG = logging.getLogger("pyflow.serve")
_MAX_LINE = 64 << 20


class Exchange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request and what it got. No header is kept, and so no key."""

    path: str
    request: dict[str, Any]
    """With the seed that was drawn for it."""
    response: str
    n_ctx: int
    """Tokens that a prompt and its answer could have."""


def frames(response: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a body: itself, or those of its events."""
    lines = response.splitlines() if response.startswith(("data:", "event:", ":")) else [response]
    for line in lines:
        text = line.removeprefix("data:").strip()
        if text.startswith("{"):
            found = msgspec.json.decode(text)
            if isinstance(found, dict):
                yield found


def read(path: Path) -> Iterator[Exchange]:
    """What a file of `--record` holds. PyflowError: it is none, with the number of the line."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE):
                number += 1
                try:
                    yield msgspec.json.decode(line, type=Exchange)
                except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                    if number > 1 and not line.endswith(b"\n"):
                        _LOG.warning("%s: line %d was cut short: left out", path, number)
                        return
                    raise PyflowError(
                        f"{path}: line {number}: expected a line of 'pyflow serve --record': "
                        f"{error}"
                    ) from None
    except OSError as error:
        raise PyflowError(f"{path}: cannot be read: {error.strerror}") from None


# What differs between two answers to one request: names, times, and what was known already.
_PASSING = frozenset(
    {"id", "item_id", "call_id", "created", "created_at", "completed_at", "timings"}
    | {"cached_tokens", "sequence_number", "cache_read_input_tokens", "obfuscation"}
)
# Texts that come in parts, cut wherever a part was ready.
_GROWING = frozenset({"content", "text", "delta", "partial_json", "arguments", "reasoning_content"})


def essence(response: str) -> dict[str, Any]:
    """A body without what passes, parts of a stream put together: equal for equal answers."""
    out: dict[str, Any] = {}
    for found in frames(response):
        _fold(out, "", found)
    return out


def _fold(out: dict[str, Any], path: str, value: object) -> None:
    name = path.rpartition(".")[2]
    if name in _PASSING:
        return
    if isinstance(value, Mapping):
        if "cache_read_input_tokens" in value and "input_tokens" in value:
            # Of a Messages API, whose input_tokens are those that were not cached.
            n_cached = value["cache_read_input_tokens"] or 0
            value = {**value, "input_tokens": value["input_tokens"] + n_cached}
        for key, each in value.items():
            _fold(out, f"{path}.{key}", each)
    elif isinstance(value, list):
        # Logprobs of the tokens of a part go on from those before.
        grows = ".logprobs." in path
        start = out.get(f"{path}.n", 0) if grows else 0
        for i, each in enumerate(value):
            at = each.get("index", i) if isinstance(each, Mapping) else i
            _fold(out, f"{path}[{start + at}]", each)
        if grows:
            out[f"{path}.n"] = start + len(value)
    elif isinstance(value, str) and name in _GROWING:
        out[path] = (out.get(path) or "") + value
    else:
        out[path] = value
