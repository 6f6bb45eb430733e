"""Files that are broken at random: bytes of no meaning, and sound files with some edits."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pyflow.errors import FormatError, UnsupportedError

MAX_SECONDS, MAX_NBYTES = 10.0, 64 << 20  # far above what a slow machine takes

_NUMBERS = st.sampled_from([0, 1, -1, 7, 64, 1 << 16, 1 << 31, 1 << 63, 10**30, -(1 << 63)])
_FLOATS = st.sampled_from([0.5, -1.5, 1e-320, 1e308, float("inf"), float("nan")])
_TEXTS = st.sampled_from(["", "a", "<s>", "\0", "\x1b[2J", "é" * 300, "(a+)+$", "[", "\ud800", "▁"])
VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _FLOATS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or dict below a value, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@st.composite
def edited(draw: st.DrawFn, sound: Any, values: st.SearchStrategy[Any] = VALUES) -> Any:
    """A copy of a tree of lists and dicts with some values replaced, taken from elsewhere in it, or
    left out."""
    tree = json.loads(json.dumps(sound))
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["replace", "replace", "move", "leave out"]))
        if how == "leave out":
            del holder[key]
        elif how == "move":
            other, there = draw(st.sampled_from(places))
            holder[key] = json.loads(json.dumps(other[there])) if _has(other, there) else None
        else:
            holder[key] = draw(values)
    return tree


def edited_json(sound: Any) -> st.SearchStrategy[bytes]:
    """A JSON file whose values or whose bytes are not what they were."""
    return edited(sound).map(lambda tree: json.dumps(tree).encode()) | damaged(
        json.dumps(sound).encode()
    )


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


@st.composite
def damaged(draw: st.DrawFn, *sound: bytes) -> bytes:
    """Any bytes, or a sound file that was cut, of which a part is there twice, or in which some
    bytes are others."""
    raw = bytearray(draw(st.sampled_from(sound)))
    if draw(st.integers(0, 9)) == 0 or not raw:
        return draw(st.binary(max_size=300))
    at = st.integers(0, len(raw) - 1)
    for _ in range(draw(st.integers(0, 6))):
        raw[draw(at)] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        start, end = sorted((draw(at), draw(at)))
        raw[start:start] = raw[start:end]
    if draw(st.booleans()):
        del raw[draw(at) :]
    return bytes(raw)


def as_read(value: Any) -> Any:
    """What a reader of GGUF files has for a value in JSON."""
    if isinstance(value, list) and value and all(type(one) in (int, float) for one in value):
        return np.array(value) if all(abs(one) < 1 << 63 for one in value) else value
    return value


@contextmanager
def read_or_refused() -> Iterator[None]:
    """What is done here ends well or in one of the two errors for files, whose message can be
    printed, and takes little of the processor and of Python's memory."""
    tracemalloc.start()
    used = time.process_time()
    said = ""
    try:
        yield
    except (FormatError, UnsupportedError) as error:
        said = str(error)
    finally:
        used = time.process_time() - used
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert not said or said.isprintable()
    assert len(said) < 2000
    assert used < MAX_SECONDS
    assert most < MAX_NBYTES
