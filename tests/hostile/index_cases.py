"""Malformed indices of shards. Beside each lie a.safetensors, with tensor a, and b.safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cases import Case
from safetensors_cases import build, tensor

BESIDE = {
    "a.safetensors": build({"a": tensor()}, bytes(8)),
    "b.safetensors": build({"b": tensor(), "c": tensor(offsets=(8, 16))}, bytes(16)),
    "again.safetensors": build({"a": tensor()}, bytes([1] * 8)),
    "broken.safetensors": build({"x": tensor()}, bytes(7)),
}
WHOLE = {
    "metadata": {"total_size": 24, "any": [1, -2.5e3, None, True, {"x": "y"}]},
    "weight_map": {"a": "a.safetensors", "b": "b.safetensors", "c": "b.safetensors"},
}


def cases() -> Iterator[Case]:
    def mapped(name: str, files: object, *mentions: str) -> Case:
        return Case(f"index_{name}", json.dumps({"weight_map": files}).encode(), mentions)

    for name, data, words in [
        ("list", b"[]", "JSON at byte 0: expected an object"),
        ("no_map", b'{"metadata": {}}', "expected a weight_map, found none"),
        ("twice", b'{"weight_map":{},"weight_map":{}}', "key 'weight_map'"),
        ("after", b'{"weight_map":{"a":"a.safetensors"}}x', "nothing after the end"),
        ("word", b'{"metadata":nul', "expected a value of JSON, found 'nul'"),
        ("number", b'{"metadata":-x', "expected a digit, found 'x'"),
        ("point", b'{"metadata":1.}', "expected a digit"),
        ("exponent", b'{"metadata":1e}', "expected a digit"),
        ("deep", b'{"metadata":' + b"[" * 100_000, "at most 32 levels of JSON"),
        ("deep_objects", b'{"metadata":' + b'{"":' * 100_000, "at most 32 levels of JSON"),
        ("not_utf8", b'{"weight_map":{"\xff":"a.safetensors"}}', "expected UTF-8"),
        ("tensor_twice", b'{"weight_map":{"a":"x","a":"x"}}', "key 'a'"),
    ]:
        yield Case(f"index_{name}", data, (words,))
    yield mapped("empty", {}, "expected 1 to 4,096 files, found 0")
    yield mapped("many", {str(i): str(i) for i in range(4097)}, "found 4,097")
    yield mapped("map_list", ["a"], "weight_map at", "expected an object")
    yield mapped("file_number", {"a": 1}, "file at", "expected a string")
    for i, name in enumerate(
        ("", ".", "..", "../a.safetensors", "/etc/passwd", "x/../a", "a\\b", "a\0b")
    ):
        yield mapped(f"path_{i}", {"a": name}, "the plain name of a file beside the index")
    yield mapped("missing_file", {"a": "none.safetensors"}, "none.safetensors is missing")
    yield mapped("broken_part", {"x": "broken.safetensors"}, "broken.safetensors: header 'x'")
    both = {"a": "a.safetensors", "x": "again.safetensors"}
    yield mapped("in_both", both, "tensor 'a'", "expected each name once")
    yield mapped("itself", {"a": "x.index.json"}, "expected a file of weights, found an index")


CASES = list(cases())
