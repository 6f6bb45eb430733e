"""Malformed .npz archives, and valid ones."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np
from cases import Case

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
CONFIG = np.frombuffer(b"type: t\n\0", np.int8)


def saved(arrays: Mapping[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def packed(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def array(text: str, values: bytes = VALUES.tobytes(), version: bytes = b"\1\0") -> bytes:
    head = text.encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(head)) + head + values


def described(
    descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3)", more: str = ""
) -> bytes:
    return array(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{more}, }}\n")


VALID = {
    "by_numpy": saved({"a": VALUES, "special:model.yml": CONFIG}),
    "types": saved({t: np.zeros(3, t) for t in ("f2", "f4", "f8", "i1", "u1", "i4", "i8", "?")}),
    "tight": packed({"a.npy": array("{'descr':'<f4','fortran_order':False,'shape':(2,3)}")}),
    "columns_of_one": packed({"a.npy": described(order="True", shape="(6,)")}),
}


def cases() -> Iterator[Case]:
    sound = VALID["by_numpy"]
    for n in (40, 100, len(sound) // 2, len(sound) - 1):
        yield Case(f"cut_{n}", sound[:n], (" at byte ",))
    for name, member, mentions in (
        ("magic", b"\x93NUMPX" + described()[6:], "magic at byte"),
        ("empty", b"", "magic at byte"),
        ("text_cut", array("x" * 90)[:50], "header at byte"),
        ("no_dict", array("[]"), "expected '{'"),
        ("no_end", array("{'descr': '<f4', "), "header at byte"),
        ("no_shape", array("{'descr': '<f4', 'fortran_order': False}"), "and no more"),
        ("twice", described(more=", 'shape': (2, 3)"), "each once, found 'shape'"),
        ("more", described(more=", 'x': 1"), "found 'x'"),
        ("rest", array("{'descr':'<f4','fortran_order':False,'shape':(2,3)} + 1"), "no more"),
        ("flag", described(order="1"), "expected True or False"),
        ("call", described(shape="f()"), "expected '('"),
        ("negative", described(shape="(-1,)"), "expected a dimension"),
        ("huge", described(shape="(99999999999999999, 99999999999999999)"), "values at byte"),
        ("long", described(shape="(999999999999999999,)"), "expected a dimension"),
        ("rank", described(shape="(" + "1, " * 9 + ")"), "at most 8 dimensions"),
        ("short", described(shape="(2, 4)"), "values at byte"),
        ("longer", described(shape="(2, 2)"), "values at byte"),
    ):
        yield Case(f"array_{name}", packed({"a.npy": member}), (mentions,))
    for name, member, mentions in (
        ("objects", described(descr="'|O'"), "Python objects, which are never read"),
        ("fields", described(descr="[('a', '<f4')]"), "expected little-endian numbers"),
        ("big_endian", described(descr="'>f4'"), "expected little-endian numbers"),
        ("text", described(descr="'<U1'"), "expected little-endian numbers"),
        ("columns", described(order="True"), "fortran_order at byte"),
        ("version", array("{}", version=b"\4\0"), "version at byte"),
    ):
        data = packed({"a.npy": member})
        yield Case(f"array_{name}", data, (mentions,), "UnsupportedError")
    both = {"a.npy": described(), "b.pkl": b"x"}
    yield Case("other_member", packed(both), ("expected an array (.npy)",))
    deflated = packed({"a.npy": described()}, zipfile.ZIP_DEFLATED)
    yield Case("deflated", deflated, ("save the model again with numpy.savez",), "UnsupportedError")


CASES = list(cases())
