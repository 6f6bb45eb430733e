"""Malformed model.bin files of CTranslate2, and valid ones; `build` writes any."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cases import Case

TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "bfloat16": 5}


@dataclass(frozen=True)
class Variable:
    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes


def text(name: str) -> bytes:
    raw = name.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(v: Variable) -> bytes:
    dims = struct.pack(f"<B{len(v.shape)}I", len(v.shape), *v.shape)
    return text(v.name) + dims + struct.pack("<BI", v.type, len(v.data)) + v.data


def build(
    variables: Sequence[Variable],
    aliases: Sequence[tuple[str, str]] = (),
    *,
    version: int = 6,
    spec: str = "TransformerSpec",
) -> bytes:
    head = struct.pack("<I", version) + text(spec) + struct.pack("<II", 7, len(variables))
    tail = struct.pack("<I", len(aliases)) + b"".join(text(a) + text(b) for a, b in aliases)
    return head + b"".join(map(variable, variables)) + tail


def floats(name: str, *shape: int) -> Variable:
    n = 1
    for dim in shape:
        n *= dim
    return Variable(name, shape, 0, struct.pack(f"<{n}f", *range(1, n + 1)))


CODES = Variable("b/weight", (2, 32), 1, bytes(range(64)))
SETTINGS = [
    Variable("s/heads", (), 2, struct.pack("<h", 8)),
    Variable("s/flag", (), 1, b"\1"),
    Variable("s/scale", (), 0, struct.pack("<f", 0.5)),
    Variable("s/far", (), 3, struct.pack("<i", -1)),
]
PLAIN = [floats("a", 3, 4), floats("c", 5)]
HALVES = [Variable("h", (4,), 4, bytes(8)), Variable("i", (4,), 5, bytes(8))]
VALID = {
    "plain": build(PLAIN, [("d", "c")]),
    "settings": build([*SETTINGS, *PLAIN, *HALVES]),
    "codes": build([CODES, floats("b/weight_scale", 2)]),
    "codes_with_one_divisor": build([CODES, floats("b/weight_scale", 1)]),
    "codes_alone": build([CODES], version=4),
    "nothing": build([]),
}


def cases() -> Iterator[Case]:
    sound = VALID["plain"]
    for n in (23, 25, 29, 31, 36, 45, 80, 100, len(sound) - 3):
        yield Case(f"cut_{n}", sound[:n], (" at byte ",))
    yield Case("long", sound + b"\0", ("end at byte", "found 1 bytes more"))
    for version in (0, 3, 7, 255):
        mentions = (f"version at byte 0: expected 4 to 6, found {version}",)
        yield Case(
            f"version_{version}", build(PLAIN, version=version), mentions, "UnsupportedError"
        )
    for name, v, mentions in (
        ("type", Variable("a", (1,), 6, b"x"), "type at byte 39: expected a number from 0 to 5"),
        ("short", Variable("a", (3,), 0, bytes(8)), "bytes at byte"),
        ("long_data", Variable("a", (1,), 0, bytes(8)), "bytes at byte"),
        ("huge", Variable("a", (1 << 31, 1 << 31, 8), 0, b""), "bytes at byte"),
        ("rank", Variable("a", (1,) * 9, 1, b"x"), "rank at byte 34: expected at most 8"),
        ("half_setting", Variable("a", (), 4, b"xx"), "expected a setting in F32 or an integer"),
        ("empty_name", Variable("", (), 1, b"x"), "expected UTF-8 with one zero"),
        ("zero_in_name", Variable("a\0b", (), 1, b"x"), "expected UTF-8 with one zero"),
    ):
        yield Case(f"variable_{name}", build([v]), (mentions,))
    latin = build([floats("ä", 1)]).replace("ä".encode(), b"\xe4\xe4")
    yield Case("name_not_utf8", latin, ("expected UTF-8 with one zero",))
    many = sound[:22] + sound[22:26] + struct.pack("<I", 1 << 30) + sound[30:]
    yield Case("count", many, ("number of variables", "1,073,741,824"))
    yield Case("aliases", build([])[:-4] + b"\xff" * 4, ("number of aliases",))
    yield Case("twice", build([*PLAIN, PLAIN[0]]), ("expected each name once, found 'a' again",))
    yield Case("alias_twice", build(PLAIN, [("a", "c")]), ("expected each name once",))
    yield Case("alias_of_none", build(PLAIN, [("d", "e")]), ("alias 'd'", "found 'e'"))
    for name, scale in (
        ("more", floats("b/weight_scale", 3)),
        ("halves", Variable("b/weight_scale", (2,), 4, bytes(4))),
        ("zero", Variable("b/weight_scale", (2,), 0, bytes(8))),
        ("nan", Variable("b/weight_scale", (2,), 0, b"\xff" * 8)),
        ("negative", Variable("b/weight_scale", (2,), 0, struct.pack("<2f", 1, -1))),
        ("infinite", Variable("b/weight_scale", (2,), 0, struct.pack("<2f", 1, float("inf")))),
    ):
        yield Case(f"scale_{name}", build([CODES, scale]), ("b/weight",))


CASES = list(cases())
