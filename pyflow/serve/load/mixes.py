"""What users ask for: mixes of requests, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

_TASKS = (
    "Write a long story about {a} and {b}.",
    "Explain to a child, in many sentences, how {a} became friends with {b}.",
    "List twenty things that one can do with {a}, with a sentence about each.",
    "Write a letter to {a} that tells what happened to {b} last summer.",
    "Compare {a} with {b}: their history, their use and their future.",
    "Describe a day in the life of {a}, hour by hour.",
)
_NOUNS = (
    "a lighthouse keeper",
    "an old bicycle",
    "the river behind the mill",
    "a blue umbrella",
    "a baker from the north",
    "the last train home",
    "a clock without hands",
    "three wild geese",
    "the smallest library",
    "a quiet harbour",
)
_WORDS = ("stone", "river", "light", "under", "seven", "paper", "green", "walks", "after", "never")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {
            "type": "array",
            "items": {"type": "string", "maxLength": 30},
            "maxItems": 5,
        },
        "city": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "hobbies", "city"],
    "additionalProperties": False,
}
# About so many words are read as a long prompt, and as one that requests share.
_LONG, _SHARED = 6000, 1500


def request(mix: str, index: int, *, n_predict: int, seed: int) -> tuple[str, dict[str, Any]]:
    """The kind and the body of request number `index` of a mix."""
    kind, messages, more = MIXES[mix](random.Random(f"{seed} {mix} {index}"), index, seed)
    body = {
        "messages": messages,
        "max_tokens": n_predict if kind != "long" else 16,
        "temperature": 0.7,
        "seed": index,
        **more,
    }
    return kind, body


_Made = tuple[str, list[dict[str, str]], Mapping[str, Any]]


def _question(rng: random.Random) -> str:
    a, b = rng.sample(_NOUNS, 2)
    return rng.choice(_TASKS).format(a=a, b=b)


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(n))


def _chat(rng: random.Random, _index: int, _seed: int) -> _Made:
    return "chat", [{"role": "user", "content": _question(rng)}], {}


def _long(rng: random.Random, index: int, seed: int) -> _Made:
    if index % 8 != 7:
        return _chat(rng, index, seed)
    text = f"{_words(rng, _LONG)}\n\nWhat was this about?"
    return "long", [{"role": "user", "content": text}], {}


def _shared(rng: random.Random, _index: int, seed: int) -> _Made:
    system = _words(random.Random(seed), _SHARED)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": _question(rng)},
    ]
    return "shared", messages, {}


def _schema(rng: random.Random, _index: int, _seed: int) -> _Made:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": True, "schema": SCHEMA},
    }
    content = f"Invent a person who met {rng.choice(_NOUNS)}."
    return "schema", [{"role": "user", "content": content}], {"response_format": form}


MIXES: dict[str, Callable[[random.Random, int, int], _Made]] = {
    "chat": _chat,
    "long": _long,
    "shared": _shared,
    "schema": _schema,
}
"""Short questions; every eighth with a prompt of some 6,000 words; one system message of some 1,500
words for all; answers as JSON of a schema."""
