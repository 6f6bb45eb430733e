"""Malformed safetensors files, one per branch of the loader; and valid ones."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator

from cases import Case


def build(header: bytes | str | object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of a header (text, or what JSON makes of it) and data."""
    if not isinstance(header, bytes):
        header = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> object:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def blocks(
    told: object,
    *,
    version: object = "1",
    dtype: str = "U8",
    shape: tuple[int, ...] = (2, 288),
    more: object = None,
) -> bytes:
    """A file of one tensor "w" of bytes, of which metadata tell a type of blocks."""
    metadata = {"pyflow.tensors": told if isinstance(told, str) else json.dumps(told)}
    metadata |= {"pyflow.version": version, **(more or {})}  # type: ignore[dict-item]
    nbytes = math.prod(shape)
    lines = {"w": tensor(dtype, shape, (0, nbytes))}
    known = {key: value for key, value in metadata.items() if value is not None}
    return build({"__metadata__": known, **lines}, bytes(nbytes))


def block(dtype: object = "Q4_K", shape: object = (2, 512)) -> object:
    return {"dtype": dtype, "shape": shape}


WHOLE = build(
    {
        "__metadata__": {"format": "pt", "ü": "\x1b"},
        "a": tensor(),
        "b": tensor("BF16", (1, 2), (8, 12)),
        "none": tensor("F64", (0, 5), (12, 12)),
        "scalar": tensor("U8", (), (12, 13)),
    },
    bytes(13),
)
VALID = {
    "whole": WHOLE,
    "empty": build({}),
    "padded": build('{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}   ', b"\7"),
    "spaces": build(
        ' {\n"a" : {"shape":[ ],"data_offsets":[0,1] ,"dtype":"\\u0049\\u0038"} } ', b"x"
    ),
    "packed": build(
        {"a": tensor("F4", (2, 2), (0, 2)), "b": tensor("F6_E2M3", (4,), (2, 5))}, b"12345"
    ),
    "blocks": blocks({"w": block()}),
    "blocks_of_one_row": blocks({"w": block("Q3H_B64", (64,))}, shape=(32,)),
    "blocks_of_experts": blocks({"w": block("Q8_0", (2, 1, 3, 32))}, shape=(2, 1, 3, 34)),
    "blocks_of_nothing": blocks({"w": block("Q6_K", (0, 256))}, shape=(0, 210)),
    "blocks_of_none": blocks({}),
    "any_order": build({"b": tensor("U8", (1,), (1, 2)), "a": tensor("U8", (1,), (0, 1))}, b"ab"),
}


def header_cases() -> Iterator[Case]:
    for name, data, mentions in [
        ("length_huge", build(b"{", length=1 << 60), ("length at byte 0", "at most 100,000,000")),
        ("length_max", build(b"{}", length=(1 << 64) - 1), ("length at byte 0",)),
        ("length_past_end", build(b"{}", length=3), ("length at byte 0: expected at most 2 ",)),
        ("length_cap", build(b"{}", length=100_000_001), ("found 100,000,001",)),
        ("length_zero", build(b"", b"{}", length=0), ("JSON at byte 8: expected an object",)),
        ("length_short", build('{"a":1}', length=3), ("at byte 11", "end of a string")),
        ("list", build("[]"), ("expected an object, found '['",)),
        ("null", build("null"), ("expected an object",)),
        ("open", build("{"), ("key at byte 9: expected a string, found the end",)),
        ("comma_first", build("{,}"), ("key at byte 9: expected a string",)),
        ("comma_last", build('{"__metadata__":{},}'), ("key at byte 27: expected a string",)),
        ("no_comma", build('{"__metadata__":{} "a":{}}'), ("expected ',' or '}', found '\"'",)),
        ("no_colon", build('{"a" 1}'), ("expected ':' after a key",)),
        ("key_number", build("{1:2}"), ("expected a string, found '1'",)),
        ("key_not_utf8", build(b'{"\xff":1}'), ("key at byte 9: expected UTF-8",)),
        ("key_overlong", build(b'{"\xc0\x80":1}'), ("expected UTF-8",)),
        ("key_surrogate", build('{"\\ud800":1}'), ("found a lone surrogate",)),
        ("key_low_surrogate", build('{"\\udc00":1}'), ("a pair of surrogates",)),
        ("key_half_pair", build('{"\\ud800\\u0041":1}'), ("a pair of surrogates",)),
        ("key_bad_escape", build('{"\\x41":1}'), ("expected an escape of JSON, found 'x'",)),
        ("key_short_escape", build('{"\\u00"'), ("four hexadecimal digits",)),
        ("key_control", build(b'{"a\nb":1}'), ("an escape for a control character",)),
        ("key_open", build('{"a'), ("'\"' at the end of a string, found the end",)),
        ("escape_open", build('{"\\'), ("an escape of JSON, found the end",)),
        ("after", build("{} {}"), ("nothing after the end of the JSON, found '{'",)),
        ("nul_after", build(b"{}\0"), ("nothing after the end of the JSON",)),
        ("bom", build(b"\xef\xbb\xbf{}"), ("expected an object",)),
        ("metadata_list", build({"__metadata__": []}), ("header '__metadata__': value",)),
        ("metadata_number", build({"__metadata__": {"a": 1}}), ("value at", "expected a string")),
        ("metadata_nested", build({"__metadata__": {"a": {}}}), ("expected a string",)),
        (
            "metadata_twice",
            build('{"__metadata__":{},"__metadata__":{}}'),
            ("key '__metadata__' at byte 27: expected each key once",),
        ),
        ("metadata_key_twice", build('{"__metadata__":{"a":"","a":""}}'), ("each key once",)),
    ]:
        yield Case(name, data, mentions)
    one = json.dumps(tensor("U8", (0,), (0, 0)))
    twice = build(f'{{"a":{one},"\\u0061":{one}}}')
    yield Case("tensor_twice", twice, ("key 'a' at byte 67: expected each key once",))


def tensor_cases() -> Iterator[Case]:
    def case(name: str, value: object, *mentions: str, data: int = 8) -> Case:
        return Case(name, build({"w": value}, bytes(data)), ("header 'w': ", *mentions))

    yield case("tensor_list", [], "tensor at byte 14: expected an object")
    yield case("tensor_string", "F32", "tensor at byte 14: expected an object")
    yield case("tensor_empty", {}, "expected dtype, shape and data_offsets, found fewer")
    for key in ("dtype", "shape", "data_offsets"):
        rest = {k: v for k, v in dict(tensor()).items() if k != key}  # type: ignore[call-overload]
        yield case(f"no_{key}", rest, "dtype, shape and data_offsets, found fewer")
    yield case("extra_key", {**tensor(), "strides": [1]}, "key at", "found 'strides'")  # type: ignore[dict-item]
    for name, dtype in [
        ("float", "float32"),
        ("case", "f32"),
        ("none", ""),
        ("f33", "F33"),
        ("ggml", "Q4_K"),
        ("torch", "C128"),
    ]:
        yield case(f"dtype_{name}", tensor(dtype), "dtype at byte 24", f"found '{dtype}'")
    yield case("dtype_number", tensor(1), "dtype at byte 24: expected a string")
    for name, shape, words in [
        ("negative", [-2], "expected an integer of 0 or more, found '-'"),
        ("float", [2.0], "expected an integer of 0 or more, found '.'"),
        ("exponent", [2e22], "expected an integer of 0 or more"),
        ("string", ["2"], "expected an integer of 0 or more"),
        ("bool", [True], "expected an integer of 0 or more"),
        ("null", None, "shape at byte 40: expected an array"),
        ("nested", [[2]], "expected an integer of 0 or more"),
        ("63_bits", [1 << 63], "expected an integer below 2^63"),
        ("64_bits", [1 << 64], "expected an integer below 2^63"),
        ("long", [10**400], "expected an integer below 2^63"),
        ("product", [1 << 40, 1 << 40], "fewer than 2^63 values"),
        ("bytes", [(1 << 62) + 1], "fewer than 2^64 bytes"),
        ("many", [1] * 33, "at most 32 dimensions"),
        ("small", [1], "the 4 bytes of 1 values of F32, found 0 to 8"),
        ("large", [3], "the 12 bytes of 3 values"),
        ("empty", [0], "the 0 bytes of 0 values"),
        ("scalar", [], "the 4 bytes of 1 values"),
    ]:
        yield case(f"shape_{name}", tensor(shape=shape), words)
    leading = '{"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}'
    yield Case("shape_zero_first", build(leading, bytes(8)), ("without leading zeros",))
    for name, offsets, words in [
        ("one", [8], "two numbers, found 1"),
        ("none", [], "two numbers, found 0"),
        ("three", [0, 8, 8], "two numbers, found more"),
        ("null", None, "expected an array"),
        ("object", {}, "expected an array"),
        ("negative", [-8, 0], "an integer of 0 or more"),
        ("reversed", [8, 0], "the 8 bytes of 2 values of F32, found 8 to 0"),
        ("wide", [0, 9], "the 8 bytes of 2 values"),
        ("past_end", [8, 16], "an end within the 8 bytes of data, found 8 to 16"),
        ("wraps", [(1 << 63) - 8, (1 << 63) - 1], "the 8 bytes of 2 values"),
        ("far", [(1 << 62), (1 << 62) + 8], "an end within the 8 bytes of data"),
    ]:  # fmt: skip
        yield case(f"offsets_{name}", tensor(offsets=offsets), words)
    yield case("packed_odd", tensor("F4", (3,), (0, 1)), "a multiple of 2 values of F4, found 3")
    yield case("packed_f6", tensor("F6_E3M2", (5,), (0, 4)), "a multiple of 4 values of F6_E3M2")


def placement_cases() -> Iterator[Case]:
    def case(name: str, lines: dict[str, tuple[int, int]], data: int, *mentions: str) -> Case:
        header = {n: tensor("U8", (b - a,), (a, b)) for n, (a, b) in lines.items()}
        return Case(f"place_{name}", build(header, bytes(data)), mentions)

    gap = "data without gap or overlap"
    yield case("hole_first", {"a": (1, 4)}, 4, "header 'a'", f"{gap}: 0 first, found 1 to 4")
    yield case("hole", {"a": (0, 2), "b": (3, 4)}, 4, "header 'b'", f"{gap}: 2 first")
    yield case("overlap", {"a": (0, 3), "b": (2, 4)}, 4, "header 'b'", f"{gap}: 3 first")
    yield case("same", {"a": (0, 4), "b": (0, 4)}, 4, f"{gap}: 4 first, found 0 to 4")
    yield case("inside", {"a": (0, 4), "b": (1, 2)}, 4, f"{gap}: 4 first, found 1 to 2")
    yield case("empty_inside", {"a": (0, 4), "b": (2, 2)}, 4, "header 'b'", gap)
    yield case("tail", {"a": (0, 4)}, 5, "data at byte", "all 5 bytes, found 4 bytes")
    yield case("no_tensors", {}, 1, "all 1 bytes, found 0 bytes")
    yield case("cut", {"a": (0, 4)}, 3, "an end within the 3 bytes of data")


def block_cases() -> Iterator[Case]:
    def case(name: str, data: bytes, *mentions: str, error: str = "FormatError") -> Case:
        return Case(f"blocks_{name}", data, mentions, error)

    def told(name: str, value: object, *mentions: str, error: str = "FormatError") -> Case:
        return case(name, blocks({"w": value}), "pyflow.tensors 'w': ", *mentions, error=error)

    newer = "UnsupportedError"
    one = {"w": block()}
    yield case("no_version", blocks(one, version=None), "both pyflow.version", "one of them")
    alone = build({"__metadata__": {"pyflow.version": "1"}})
    yield case("no_tensors", alone, "both pyflow.version", "one of them")
    for version in ("2", "", "01", "x" * 200):
        found = "pyflow.version at byte 8: expected 1"
        yield case(f"version_{version[:5]}", blocks(one, version=version), found, error=newer)
    other = {"pyflow.table": ""}
    yield case("other_key", blocks(one, more=other), "or neither, found 'pyflow.table'")
    yield case("newer_key", blocks(one, version="2", more=other), "pyflow.version", error=newer)
    for name, text, words in [
        ("empty", "", "JSON at byte 0: expected an object, found the end"),
        ("list", "[]", "JSON at byte 0: expected an object"),
        ("open", '{"w":', "pyflow.tensors 'w'"),
        ("after", "{} {}", "nothing after the end of the JSON"),
        ("deep", '{"w":{"shape":' + "[" * 100_000, "shape at byte 15: expected an integer"),
    ]:
        yield case(f"text_{name}", blocks(text), words)
    line = json.dumps(block())
    twice = f'{{"w":{line},"w":{line}}}'
    yield case("twice", blocks(twice), "'w'", "type U8, found Q4_K")
    yield case("no_such", blocks({"v": block()}), "'v': tensor at byte 6", "name of the header")
    yield case("metadata", blocks({"__metadata__": block()}), "name of the header")
    yield told("string", "Q4_K", "expected an object")
    yield told("no_shape", {"dtype": "Q4_K"}, "dtype and shape, found fewer")
    yield told("no_dtype", {"shape": [2, 512]}, "dtype and shape, found fewer")
    yield told("key", {**block(), "rows": 2}, "dtype or shape, found 'rows'")  # type: ignore[dict-item]
    yield told("dtype_number", {"dtype": 3}, "expected a string, found '3'")
    again = '{"w":{"dtype":"Q4_K","dtype":"Q4_K"}}'
    yield case("key_twice", blocks(again), "expected each key once")
    for name in ("Q9_Z", "q4_k", "Q1_0", "Q8_1", "F32", "U8", ""):
        words = f"dtype at byte 16: expected a type of blocks .*, found '{name}'".split(" .*, ")
        yield told(f"dtype_{name or 'none'}", block(name), *words, error=newer)
    for dtype in ("F32", "I8", "BOOL"):
        nbytes = 4 if dtype == "F32" else 1
        lines = {"w": tensor(dtype, (2, 288), (0, 576 * nbytes))}
        metadata = {"pyflow.version": "1", "pyflow.tensors": json.dumps(one)}
        data = build({"__metadata__": metadata, **lines}, bytes(576 * nbytes))
        yield case(f"stored_as_{dtype}", data, f"type U8, found {dtype}")
    for name, shape, words in [
        ("flat", [1024], "the 2 dimensions of the bytes, one at least, found 1"),
        ("deep", [1, 2, 512], "the 2 dimensions of the bytes, one at least, found 3"),
        ("none", [], "found 0"),
        ("rows", [4, 512], "dimension 0 as of the bytes, 2, found 4"),
        ("swapped", [512, 2], "dimension 0 as of the bytes, 2, found 512"),
        ("part", [2, 500], "a multiple of 256 weights for Q4_K, found 500"),
        ("fewer", [2, 256], "rows of 288 bytes, found 256 of Q4_K"),
        ("more", [2, 768], "rows of 288 bytes, found 768 of Q4_K"),
        ("zero", [2, 0], "rows of 288 bytes, found 0 of Q4_K"),
        ("wraps", [2, ((1 << 63) - 1) // 256 * 256], "rows of 288 bytes"),
        ("negative", [2, -512], "an integer of 0 or more"),
        ("63_bits", [2, 1 << 63], "an integer below 2^63"),
        ("many", [1] * 33, "at most 32 dimensions"),
    ]:
        yield told(f"shape_{name}", block(shape=shape), words)
    scalar = blocks({"w": block(shape=())}, shape=())
    yield case("scalar", scalar, "the 0 dimensions of the bytes, one at least, found 0")


def depth_cases() -> Iterator[Case]:
    for name, nested in [("lists", "[" * 100_000), ("objects", '{"a":' * 100_000)]:
        mentions = ("shape at byte" if name == "lists" else "header 'w'",)
        yield Case(f"deep_{name}", build('{"w":{"shape":' + nested), mentions)


CASES = [*header_cases(), *tensor_cases(), *placement_cases(), *block_cases(), *depth_cases()]
# Every byte of the header matters: JSON ends with its last bracket, data with the last tensor.
CUTS = [Case(f"cut_{n}", WHOLE[:n], ()) for n in range(9, len(WHOLE))]
