"""Which keyword of a schema the library refuses: it says why, but not where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pyflow.constrain.library import JSON_OPTIONS, fault_of, llguidance
from pyflow.constrain.limits import node_at
from pyflow.constrain.schema import Schema

# Schemas that are tried one by one; a larger document is refused without the place.
_MAX_TRIED = 256


def place_of_fault(schema: Schema) -> tuple[str, str]:
    """The path of the deepest schema that is refused by itself, and keyword with reason."""
    document = _moved(schema.enforced)
    nodes = {pointer: node_at(schema.enforced, pointer) for pointer in schema.places}
    # The deepest first; one that refers to another is seldom the one to blame.
    order = sorted(nodes, key=lambda p: ("$ref" in str(nodes[p]), -p.count("/")))
    for pointer in order[:_MAX_TRIED]:
        node = nodes[pointer]
        if isinstance(node, bool):
            continue
        if fault := _fault(document, {"$ref": f"#/$defs/root{quote(pointer)}"}):
            return schema.places[pointer], _keyword(document, _moved(node)) + fault
    return "$", ""


def _keyword(document: dict[str, Any], node: dict[str, Any]) -> str:
    """The keyword without which the schema is accepted; all, if no single one is to blame."""
    guilty = [
        key
        for key in node
        if not _fault(document, {name: value for name, value in node.items() if name != key})
    ]
    # Where two contradict each other, either could go: the last one is named.
    return f"{guilty[-1] if guilty else ', '.join(node)}: "


def _fault(document: dict[str, Any], top: dict[str, Any]) -> str:
    text = json.dumps({"$defs": {"root": document}, **top})
    library = llguidance()
    return fault_of(library.LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS))


def _moved(node: dict[str, Any]) -> dict[str, Any]:
    """A copy for another place: its references lead to the document under $defs/root."""

    def copy(key: str, value: Any) -> Any:
        if key == "$ref":
            return f"#/$defs/root{value[1:]}"
        if key in ("const", "enum", "required", "type"):
            return value
        if isinstance(value, Mapping):
            named = key in ("properties", "patternProperties", "$defs", "definitions")
            return {k: copy("" if named else k, v) for k, v in value.items()}
        return [copy("", each) for each in value] if isinstance(value, list) else value

    return {key: copy(key, value) for key, value in node.items() if key != "$defs"} | (
        {"$defs": copy("$defs", node["$defs"])} if "$defs" in node else {}
    )
