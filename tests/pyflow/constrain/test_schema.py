"""A schema is enforced in every keyword, or refused by the name of one."""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import pytest

from pyflow.constrain import Constraint, json_text, schema
from pyflow.errors import ConstraintError

pytestmark = pytest.mark.model
Check = Callable[[Any], object]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["left"],
            "additionalProperties": False,
        }
    },
}


def is_tree(value: Any) -> bool:
    return value is None or (list(value) == ["left"] and is_tree(value["left"]))


def closed(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


ENFORCED: list[tuple[Mapping[str, object], Check]] = [
    ({"type": "string"}, lambda v: isinstance(v, str)),
    ({"type": "integer"}, lambda v: isinstance(v, int)),
    ({"type": "number"}, lambda v: isinstance(v, int | float)),
    ({"type": "boolean"}, lambda v: isinstance(v, bool)),
    ({"type": "null"}, lambda v: v is None),
    ({"type": ["null", "integer"]}, lambda v: v is None or isinstance(v, int)),
    ({"type": "string", "minLength": 2, "maxLength": 4}, lambda v: 2 <= len(v) <= 4),
    ({"type": "string", "pattern": "b"}, lambda v: "b" in v),
    (
        {"type": "string", "pattern": r"^\d{3}-[a-f]+$"},
        lambda v: re.fullmatch("[0-9]{3}-[a-f]+", v),
    ),
    ({"type": "string", "format": "date"}, lambda v: v.endswith("-02-29") or date.fromisoformat(v)),
    ({"type": "string", "format": "uuid"}, uuid.UUID),
    ({"type": "string", "format": "ipv4"}, ipaddress.IPv4Address),
    ({"type": "string", "format": "ipv6"}, ipaddress.IPv6Address),
    ({"type": "string", "format": "email"}, lambda v: "@" in v),
    ({"type": "integer", "minimum": -3, "maximum": 120}, lambda v: -3 <= v <= 120),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, lambda v: 0 < v < 1),
    ({"type": "integer", "minimum": 1, "maximum": 90, "multipleOf": 7}, lambda v: v % 7 == 0),
    ({"const": {"a": [1, "é\n"]}}, lambda v: v == {"a": [1, "é\n"]}),
    ({"enum": ["red", 3, None]}, lambda v: v in ("red", 3, None)),
    (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        lambda v: 1 <= len(v) <= 3 and all(isinstance(x, bool) for x in v),
    ),
    (
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 4},
        lambda v: v == [1, 2, 2, 2][: len(v)],
    ),
    ({"type": "array", "prefixItems": [{}], "items": False}, lambda v: len(v) <= 1),
    (closed(a={"type": "integer"}, b={"type": "null"}), lambda v: list(v) == ["a", "b"]),
    ({**PERSON, "required": ["name"]}, lambda v: len(v["name"]) <= 5),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
        lambda v: len(v) <= 2 and all(isinstance(x, int) for x in v.values()),
    ),
    ({"type": "object", "minProperties": 1}, lambda v: len(v) >= 1),
    (
        {
            "type": "object",
            "patternProperties": {"^x[0-9]$": {"type": "null"}},
            "additionalProperties": False,
        },
        lambda v: all(re.fullmatch("x[0-9]", k) and x is None for k, x in v.items()),
    ),
    ({"anyOf": [{"type": "null"}, {"const": 4}]}, lambda v: v in (None, 4)),
    ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, lambda v: v in (None, True, False)),
    (
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
        lambda v: 3 <= v <= 5,
    ),
    (TREE, is_tree),
    (
        {"definitions": {"a~/b": {"const": 1}}, "$ref": "#/definitions/a~0~1b"},
        lambda v: v == 1,
    ),
    ({"type": "object", "properties": {"next": {"$ref": "#"}}}, lambda v: isinstance(v, dict)),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "https://example.org/x",
            "title": "X",
            "description": "of no matter",
            "default": {"minLenght": 3},
            "examples": [1],
            "type": "integer",
            "maximum": 9,
        },
        lambda v: v <= 9,
    ),
]


@pytest.mark.parametrize(
    ("source", "check"), ENFORCED, ids=lambda v: "check" if callable(v) else str(v)[:50]
)
def test_texts_of_a_schema_are_what_it_says(
    source: Mapping[str, object], check: Check, texts: Callable[..., list[str]]
) -> None:
    for text in texts(Constraint.json_schema(source), 4):
        assert check(json.loads(text)) is not False, text


def chain(n: int, link: Callable[[str], object]) -> str:
    """A schema that leads through n others."""
    schemas: dict[str, object] = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(n)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**schemas, f"d{n}": {"type": "string"}}})


# Schemas, and what an error must name: path and keyword.
REFUSED: list[tuple[object, str, str]] = [
    ({"type": "string", "minLenght": 3}, "$", "minLenght"),
    ({"properties": {"a": {"items": {"not": {}}}}}, "$.properties.a.items", "not"),
    ({"$defs": {"unused": {"if": {}}}}, "$.$defs.unused", "if"),
    *(
        ({"anyOf": [{"type": "null"}, {keyword: value}]}, "$.anyOf[1]", keyword)
        for keyword, value in {
            "uniqueItems": True,
            "contains": {},
            "dependentRequired": {},
            "dependentSchemas": {},
            "propertyNames": {},
            "unevaluatedProperties": False,
            "additionalItems": False,
            "nullable": True,
            "then": {},
            "x-guidance": {"lenient": True},
            "$anchor": "a",
            "$dynamicRef": "#a",
            "$id": "b",
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "Type": "string",
        }.items()
    ),
    ({"$ref": "https://example.org/schema"}, "$", "$ref"),
    ({"properties": {"a": {"$ref": "other.json#/b"}}}, "$.properties.a", "$ref"),
    ({"$ref": "#/$defs/none"}, "$", "$ref"),
    ({"$ref": "#/enum/0", "enum": [{"minLenght": 3}]}, "$", "$ref"),
    ({"$ref": "#/default", "default": {"minLenght": 3}}, "$", "$ref"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "$", "$schema"),
    ({"items": {"type": "string", "format": "regex"}}, "$.items", "format"),
    ({"items": {"type": "string", "format": "unknown"}}, "$.items", "format"),
    ({"properties": {"a b": {"pattern": "(?=a)b"}}}, "$.properties['a b']", "pattern"),
    ({"items": {"type": "string", "pattern": r"(a)\1"}}, "$.items", "pattern"),
    ({"items": {"pattern": 3}}, "$.items", "pattern"),
    ({"items": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}, "$.items", "oneOf"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "$", "maximum"),
    (
        {"items": {"$ref": "#/$defs/z"}, "$defs": {"z": {"pattern": "(?!a)"}}},
        "$.$defs.z",
        "pattern",
    ),
    ({"items": {"enum": []}}, "$.items", "enum"),
    ({"type": "strin"}, "$", "type"),
    ({"type": []}, "$", "type"),
    ({"items": [{}, {}]}, "$", "items"),
    ({"items": {"anyOf": []}}, "$.items", "anyOf"),
    ({"required": "name"}, "$", "required"),
    ({"minLength": -1}, "$", "minLength"),
    ({"minItems": 1.5}, "$", "minItems"),
    ({"exclusiveMinimum": True}, "$", "exclusiveMinimum"),
    ({"multipleOf": 0}, "$", "multipleOf"),
    ({"maximum": 10**40}, "$", "10000"),
    ({"type": "object", "minProperties": 3}, "$", "minProperties"),
    ({"properties": [1]}, "$", "properties"),
    ({"properties": {"a": 3}}, "$.properties.a", "3"),
]


@pytest.mark.parametrize(("source", "path", "keyword"), REFUSED, ids=lambda v: str(v)[:60])
def test_what_is_not_enforced_is_refused_by_name(source: object, path: str, keyword: str) -> None:
    with pytest.raises(ConstraintError) as error:
        Constraint.json_schema(json.dumps(source))
    assert path in str(error.value)
    assert keyword in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "true",
        "[]",
        '{"type": "string"',
        "[" * 5000,
        '{"items":' * 5000 + "{}" + "}" * 5000,
        '{"items":' * 70 + "{}" + "}" * 70,
        '{"const":' + "[" * 900 + "]" * 900 + "}",
        '{"type": "string", "type": "object"}',
        '{"const": "a\\u0000"}',
        '{"properties": {"\\u0000": {}}}',
        '{"const": "\\ud800"}',
        '{"const": NaN}',
        '{"const": 1e999}',
        '{"const": 99999999999999999999}',
        json.dumps({"title": "x" * json_text.MAX_NBYTES}),
        json.dumps({"const": "x" * 20_000}),
        chain(1500, lambda ref: {"$ref": ref}),
        chain(1500, lambda ref: {"items": {"anyOf": [{"$ref": ref}]}}),
        chain(400, lambda ref: {"items": {"anyOf": [{"$ref": ref}]}}),
        json.dumps({"allOf": [{"pattern": f"a{i}"} for i in range(100)]}),
        json.dumps({"properties": {f"p{i}": {} for i in range(2048)}}),
        chain(100, lambda ref: {"pattern": ref[-3:], "allOf": [{"$ref": ref}]}),
        json.dumps({"allOf": [{"properties": {"a": {"pattern": f"{i}"}}} for i in range(40)]}),
        "\ud800",
    ],
    ids=lambda text: text[:20].encode("utf-8", "replace").decode(),
)
def test_hostile_schemas_are_refused(text: str) -> None:
    with pytest.raises(ConstraintError):
        Constraint.json_schema(text)


def test_many_patterns_and_references_apart_are_accepted() -> None:
    apart = {f"p{i}": {"type": "string", "pattern": f"^{i}$"} for i in range(40)}
    cases = {"type": "object", "properties": apart, "anyOf": [{"required": ["p1"]}, {}]}
    Constraint.json_schema(cases)
    Constraint.json_schema(chain(200, lambda ref: {"items": {"$ref": ref}}))
    Constraint.json_schema({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string"})


def test_every_keyword_is_tried() -> None:
    def names(value: object) -> set[str]:
        if isinstance(value, Mapping):
            return {*value}.union(*map(names, value.values()))
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    assert {"time", "duration"} < set(schema.FORMATS)
    assert set().union(*(names(source) for source, _ in ENFORCED)) >= schema.KEYWORDS
