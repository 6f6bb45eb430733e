"""JSON Schema as it is enforced: an allow-list of keywords, read as draft 2020-12.

What is not on the list is refused by name, so nothing that a schema asks for is dropped in silence.
Annotations, which ask for nothing, are left out of the copy that the grammar is made from.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyflow.constrain import limits
from pyflow.constrain.json_text import MAX_DEPTH, parse, refuse, shown

Node: TypeAlias = "dict[str, Any] | bool"

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
FORMATS = (
    *("date-time", "date", "time", "duration", "email"),
    *("hostname", "ipv4", "ipv6", "uuid", "uri"),
)
ANNOTATIONS = frozenset(
    (
        *("$comment", "title", "description", "default", "examples", "deprecated"),
        *("readOnly", "writeOnly", "contentMediaType", "contentEncoding"),
    )
)
# Say which draft is meant, and under which name others may refer to the document.
AT_THE_TOP = frozenset(("$schema", "$id"))
_DRAFTS = re.compile(r"https?://json-schema\.org/(draft/20(19-09|20-12)|draft-0[67])/schema#?")
# Compiling takes a core from the steps of other texts: 0.4 s for 3,000 properties, 1.3 s for 6,000.
MAX_SCHEMAS = 2048
# Bounds are doubles in the grammar; an integer beyond is not the one that was asked for.
_MAX_BOUND = 1 << 53
_CASES = ": write anyOf with one object for each case"
# Keywords that are known, and what to write instead.
_NOT_ENFORCED = {
    **dict.fromkeys(("if", "then", "else", "dependencies", "dependentRequired"), _CASES),
    **dict.fromkeys(("dependentSchemas", "propertyNames", "uniqueItems", "id", "$anchor"), ""),
    **dict.fromkeys(("contains", "minContains", "maxContains", "contentSchema"), ""),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), ""),
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"), ""),
    "additionalItems": ": write prefixItems with items",
    "not": ": say what is allowed instead",
    "nullable": ': write "type": [..., "null"]',
    "x-guidance": ": its settings are not the caller's",
}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema whose every keyword is enforced."""

    enforced: dict[str, Any]
    """Without annotations."""
    places: Mapping[str, str]
    """By the JSON pointer of each schema in it, its path for people: $.properties.name."""


def read(text: str) -> Schema:
    """The schema in a JSON text of up to 256 KiB. ConstraintError names keyword and path."""
    tree = parse(text)
    if not isinstance(tree, dict):
        refuse("$", f"expected an object, found {shown(tree)}")
    draft = tree.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if not (isinstance(draft, str) and _DRAFTS.fullmatch(draft)):
        refuse("$", f"$schema: expected drafts 6, 7, 2019-09 or 2020-12, found {shown(draft)}")
    walk = _Walk()
    enforced = walk.schema(
        {key: value for key, value in tree.items() if key not in AT_THE_TOP}, "", "$", 0
    )
    assert isinstance(enforced, dict)
    for pointer, target in walk.refs:
        if target not in walk.places:
            refuse(
                walk.places[pointer],
                f"$ref: expected '#/...' of a schema in this document, found '#{target:.60}'",
            )
    limits.check_chains(walk.refs, walk.depths)
    limits.check_patterns(enforced, walk.places)
    return Schema(enforced, walk.places)


@dataclass(slots=True)
class _Walk:
    """Every schema of a document."""

    places: dict[str, str] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    refs: list[tuple[str, str]] = field(default_factory=list)
    """Pointers of schemas, and those that they refer to."""

    def schema(self, node: Any, pointer: str, path: str, depth: int) -> Node:
        """The copy that is enforced."""
        if depth > MAX_DEPTH:
            refuse(path, f"expected up to {MAX_DEPTH} levels of schemas, found more")
        if len(self.places) == MAX_SCHEMAS:
            refuse(path, f"expected up to {MAX_SCHEMAS:,} schemas in one, found more")
        self.places[pointer], self.depths[pointer] = path, depth
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            refuse(path, f"expected a schema, an object, found {shown(node)}")
        enforced: dict[str, Any] = {}
        for key, value in node.items():
            if key in ANNOTATIONS:
                continue
            if key not in _CHECKS:
                refuse(path, _unknown(key))
            enforced[key] = _CHECKS[key](_Keyword(self, key, pointer, path, depth), value)
        _check_together(enforced, path)
        return enforced


def _unknown(key: str) -> str:
    if key in _NOT_ENFORCED:
        return f"keyword {key!r} cannot be enforced{_NOT_ENFORCED[key]}"
    if key in AT_THE_TOP:
        return f"keyword {key!r} belongs to the top of a schema"
    near = difflib.get_close_matches(key, [*_CHECKS, *ANNOTATIONS], 1)
    return f"unknown keyword {key!r:.60}" + (f"; did you mean {near[0]!r}?" if near else "")


def _check_together(node: Mapping[str, Any], path: str) -> None:
    least = node.get("minProperties", 0)
    is_open = node.get("additionalProperties", True) is not False or "patternProperties" in node
    if is_open and least > len(set(node.get("required", ()))) + 1:
        # Keys without a name in the schema may come twice, and then count once.
        refuse(
            path,
            f"minProperties: expected at most one more than 'required' has, found {least}; name "
            "the properties, or set additionalProperties to false",
        )


@dataclass(frozen=True, slots=True)
class _Keyword:
    """A keyword in its place."""

    walk: _Walk
    name: str
    pointer: str
    path: str
    depth: int

    def need(self, ok: bool, expected: str, found: Any) -> None:
        if not ok:
            refuse(self.path, f"{self.name}: expected {expected}, found {shown(found)}")

    def under(self, value: Any, *keys: str | int) -> Node:
        """The schema behind these keys of the keyword's value."""
        pointer, path = f"{self.pointer}/{self.name}", f"{self.path}.{self.name}"
        for key in keys:
            pointer += "/" + str(key).replace("~", "~0").replace("/", "~1")
            plain = isinstance(key, str) and re.fullmatch(r"[\w-]{1,60}", key)
            path += f".{key}" if plain else f"[{key!r:.60}]"
        return self.walk.schema(value, pointer, path, self.depth + 1)


def _type(at: _Keyword, value: Any) -> Any:
    names = value if isinstance(value, list) and value else [value]
    ok = all(isinstance(name, str) and name in TYPES for name in names)
    at.need(ok, ", ".join(TYPES), value)
    return value


def _schema(at: _Keyword, value: Any) -> Any:
    if at.name == "items":
        at.need(not isinstance(value, list), "a schema for all items (prefixItems: a list)", value)
    return at.under(value)


def _schemas(at: _Keyword, value: Any) -> Any:
    at.need(isinstance(value, list) and bool(value), "a list of schemas", value)
    return [at.under(each, i) for i, each in enumerate(value)]


def _named_schemas(at: _Keyword, value: Any) -> Any:
    at.need(isinstance(value, dict), "an object of schemas", value)
    return {key: at.under(each, key) for key, each in value.items()}


def _names(at: _Keyword, value: Any) -> Any:
    ok = isinstance(value, list) and all(isinstance(each, str) for each in value)
    at.need(ok, "a list of property names", value)
    return value


def _count(at: _Keyword, value: Any) -> Any:
    is_whole = _is_number(value) and value == int(value) and 0 <= value <= _MAX_BOUND
    at.need(is_whole, "a whole number from 0 on", value)
    return int(value)


def _bound(at: _Keyword, value: Any) -> Any:
    at.need(_is_number(value) and abs(value) <= _MAX_BOUND, "a number up to 2^53", value)
    if at.name == "multipleOf":
        at.need(value > 0, "a number above 0", value)
    return value


def _pattern(at: _Keyword, value: Any) -> Any:
    at.need(isinstance(value, str), "a regular expression", value)
    return value


def _format(at: _Keyword, value: Any) -> Any:
    at.need(isinstance(value, str) and value in FORMATS, ", ".join(FORMATS), value)
    return value


def _values(at: _Keyword, value: Any) -> Any:
    at.need(isinstance(value, list) and bool(value), "a list of values", value)
    return value


def _value(at: _Keyword, value: Any) -> Any:  # noqa: ARG001
    return value


def _reference(at: _Keyword, value: Any) -> Any:
    ok = isinstance(value, str) and (value == "#" or value.startswith("#/"))
    at.need(ok, "'#' or '#/...' of this document", value)
    at.walk.refs.append((at.pointer, limits.unquoted(value)))
    return value


_CHECKS: dict[str, Callable[[_Keyword, Any], Any]] = {
    **dict.fromkeys(("items", "additionalProperties"), _schema),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _schemas),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _named_schemas),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _bound),
    **{"multipleOf": _bound, "pattern": _pattern, "format": _format, "required": _names},
    **{"type": _type, "const": _value, "enum": _values, "$ref": _reference},
}
KEYWORDS = frozenset(_CHECKS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
