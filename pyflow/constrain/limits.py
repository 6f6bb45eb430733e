"""Schemas that the library cannot compile in bounded time and stack, found before it sees them.

It follows references by recursion: on a stack of 8 MB, chains of 2,000 schemas still compiled and
of 2,800 ended the process. It intersects patterns without a limit: 16 unanchored ones took
0.2 seconds, 24 did not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from pyflow.constrain.json_text import refuse

MAX_CHAIN = 512
MAX_PATTERNS = 8
_NAMED = ("properties", "patternProperties")


def check_chains(refs: Iterable[tuple[str, str]], depths: Mapping[str, int]) -> None:
    """refs: pointers of schemas, and what they refer to. depths: of schemas, by their pointers."""
    refs = [*refs]
    longest = {target: 1 for _, target in refs}
    for pointer, _ in refs:
        at = pointer
        while at:
            if at in longest:
                longest[at] = max(longest[at], depths[pointer] - depths[at] + 1)
            at = at.rpartition("/")[0]
    if (n := sum(longest.values())) > MAX_CHAIN:
        refuse("$", f"$ref: expected chains of up to {MAX_CHAIN} schemas, found up to {n}")


def check_patterns(document: dict[str, Any], places: Mapping[str, str]) -> None:
    """The document is what is enforced."""
    known: dict[str, int] = {}

    def n_meeting(node: Any, pointer: str) -> int:
        """Patterns that one text must match at most, here or anywhere below."""
        if not isinstance(node, dict):
            return 0
        if pointer in known:
            return known[pointer]
        known[pointer] = 0  # of a reference back to here
        here = ("pattern" in node) + ("format" in node)
        parts = 0
        for key, value in node.items():
            below = f"{pointer}/{key}"
            if key in ("items", "additionalProperties"):
                here = max(here, n_meeting(value, below))
            elif key in _NAMED:
                here = max(here, _most(n_meeting, value.items(), below))
            elif key == "prefixItems":
                here = max(here, _most(n_meeting, enumerate(value), below))
            elif key in ("anyOf", "oneOf"):
                parts += _most(n_meeting, enumerate(value), below)
            elif key == "allOf":
                parts += sum(n_meeting(each, f"{below}/{i}") for i, each in enumerate(value))
            elif key == "$ref":
                parts += n_meeting(*_target(document, value))
        known[pointer] = here + parts
        if known[pointer] > MAX_PATTERNS:
            refuse(
                places.get(pointer, "$"),
                f"pattern: expected up to {MAX_PATTERNS} patterns and formats for one text, found "
                f"{known[pointer]}; join them",
            )
        return known[pointer]

    try:
        n_meeting(document, "")
    except RecursionError:
        refuse("$", f"expected chains of up to {MAX_CHAIN} schemas, found more")


def _most(measure: Any, nodes: Iterable[tuple[object, Any]], pointer: str) -> int:
    return max((measure(node, f"{pointer}/{_escaped(key)}") for key, node in nodes), default=0)


def _escaped(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _target(document: dict[str, Any], reference: str) -> tuple[Any, str]:
    pointer = unquoted(reference)
    return node_at(document, pointer), pointer


def unquoted(reference: str) -> str:
    """The pointer of a reference within the document."""
    return unquote(reference[1:])


def node_at(tree: Any, pointer: str) -> Any:
    """What a pointer leads to."""
    for key in pointer.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
    return tree
