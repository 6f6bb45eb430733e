"""Malformed .bin files of Marian, and valid ones; `build` writes any."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cases import Case

F32, BYTES, CODES = 0x404, 0x101, 0x4101


@dataclass(frozen=True)
class Item:
    name: str
    type: int
    shape: tuple[int, ...]
    data: bytes


def build(items: Sequence[Item], *, version: int = 1) -> bytes:
    out = struct.pack("<QQ", version, len(items))
    for item in items:
        sizes = (len(item.name) + 1, item.type, len(item.shape), len(item.data))
        out += struct.pack("<QQQQ", *sizes)
    out += b"".join(item.name.encode() + b"\0" for item in items)
    out += b"".join(struct.pack(f"<{len(item.shape)}i", *item.shape) for item in items)
    padding = -(len(out) + 8) % 256
    out += struct.pack("<Q", padding) + bytes(padding)
    return out + b"".join(item.data for item in items)


def codes(name: str, rows: int, columns: int, divisor: float = 2.0) -> Item:
    """rows of outputs, whose shape says (in, out) but for embeddings."""
    shape = (rows, columns) if name == "Wemb" else (columns, rows)
    raw = bytes(i % 256 for i in range(rows * columns)) + struct.pack("<f", divisor)
    return Item(name, CODES, shape, raw.ljust(-(-len(raw) // 256) * 256, b"\0"))


CONFIG = Item("special:model.yml", BYTES, (10,), b"type: t\n\n\0")
PLAIN = Item("a", F32, (2, 3), struct.pack("<6f", *range(6)))
VALID = {
    "plain": build([CONFIG, PLAIN]),
    "codes": build([CONFIG, codes("Wemb", 4, 32), codes("W", 3, 64)]),
    "other_type": build([Item("b", 0x4102, (1, 2), bytes(8)), PLAIN]),
}


def cases() -> Iterator[Case]:
    sound = VALID["plain"]
    for n in (48, 79, 81, 95, 110, 118, 270, len(sound) - 1):
        yield Case(f"cut_{n}", sound[:n], (" at byte ",))
    for at, field in ((16, "bytes of the name"), (32, "rank"), (40, "bytes of data")):
        for value in (1 << 40, (1 << 64) - 1):
            data = bytearray(sound)
            data[at + 32 : at + 40] = value.to_bytes(8, "little")
            yield Case(f"{field.replace(' ', '_')}_{value:x}", bytes(data), (" at byte ",))
    many = sound[:8] + (60000).to_bytes(8, "little") + sound[16:]
    yield Case("count", many, ("number of tensors",))
    for name, item, mentions in (
        ("short", Item("a", F32, (3, 3), bytes(32)), "bytes of data at byte 40"),
        ("no_divisor", Item("a", CODES, (2, 2), bytes(4)), "bytes of data at byte 40"),
        ("zero_divisor", codes("a", 2, 32, 0.0), "divisor of 'a'"),
        ("wide_divisor", codes("a", 2, 32, 1e-9), "divisor of 'a'"),
        ("negative", Item("a", F32, (-1, 2), bytes(8)), "expected 0 or more, found -1"),
        ("huge", Item("a", F32, (1 << 30, 1 << 30, 1 << 30), bytes(8)), "bytes of data"),
        ("zero_in_name", Item("a\0b", F32, (1,), bytes(4)), "expected UTF-8 with one zero"),
    ):
        yield Case(f"tensor_{name}", build([item]), (mentions,))
    latin = build([PLAIN]).replace(b"a\0", b"\xe4\0")
    yield Case("name_not_utf8", latin, ("expected UTF-8 with one zero",))
    yield Case("twice", build([PLAIN, PLAIN]), ("expected each name once, found 'a' again",))


CASES = list(cases())
