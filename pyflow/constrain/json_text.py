"""JSON texts of users: bounded, and without what a grammar would change in silence."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from pyflow.errors import ConstraintError
from pyflow.text import unrepeated

MAX_NBYTES = 1 << 18
MAX_DEPTH = 64
# A text that must come as it is costs time for each of its bytes in each step: 1.5 ms for 5,000.
MAX_CHARS = 1 << 13
_MAX_INTEGER = 1 << 63


def refuse(path: str, found: str) -> NoReturn:
    raise ConstraintError(f"JSON schema: {path}: {found}")


def parse(text: str) -> Any:
    """The value of a JSON text. ConstraintError: it is too long or deep, has a key twice or NUL."""
    if (n := len(text.encode("utf-8", "surrogatepass"))) > MAX_NBYTES:
        refuse("$", f"expected up to {MAX_NBYTES:,} bytes, found {n:,}")
    try:
        tree = json.loads(text, object_pairs_hook=unrepeated, parse_constant=_no_number)
        _check_texts(tree, 0)
    except RecursionError:
        refuse("$", f"expected up to {MAX_DEPTH} levels, found more")
    except ValueError as error:
        if isinstance(error, ConstraintError):
            raise
        refuse("$", f"expected JSON, found: {error}")
    return tree


def _no_number(text: str) -> NoReturn:
    refuse("$", f"expected numbers, found {text}")


def _check_texts(value: Any, depth: int) -> None:
    if depth > 4 * MAX_DEPTH:
        raise RecursionError
    match value:
        case str():
            if len(value) > MAX_CHARS:
                refuse(
                    "$", f"expected texts of up to {MAX_CHARS:,} characters, found {len(value):,}"
                )
            if "\0" in value:
                refuse("$", f"expected text without NUL, found {value!r:.60}")
            try:
                value.encode()
            except UnicodeEncodeError:
                refuse("$", f"expected whole characters, found half a surrogate in {value!r:.60}")
        case bool():
            pass
        case int() if abs(value) >= _MAX_INTEGER:
            refuse("$", f"expected integers of 64 bits, found {str(value)[:40]}")
        case float() if not math.isfinite(value):
            refuse("$", "expected numbers in the range of a double, found a larger one")
        case list():
            for each in value:
                _check_texts(each, depth + 1)
        case dict():
            for key, each in value.items():
                _check_texts(key, depth)
                _check_texts(each, depth + 1)


def shown(value: Any) -> str:
    """A JSON value, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
