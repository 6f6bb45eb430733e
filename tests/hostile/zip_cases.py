"""Malformed zip archives, one per branch of the reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cases import Case
from torch_builder import PICKLE, STORAGE, Member, zip64_end, zipped

WHOLE = zipped([PICKLE, STORAGE, Member("x/byteorder", b"little"), Member("x/version", b"3\n")])
_DIRECTORY = 46 * 2 + len("x/data.pkl" + "x/data/0")
_MEMBERS = 60 + len(PICKLE.data) + 16 + len("x/data.pkl" + "x/data/0")
WIDE = zip64_end(2, _DIRECTORY, _MEMBERS, _MEMBERS + _DIRECTORY)


def case(name: str, data: bytes, *mentions: str, error: str = "FormatError") -> Case:
    return Case(f"zip_{name}", data, mentions, error)


def member(label: str, /, *mentions: str, error: str = "FormatError", **changes: Any) -> Case:
    return case(label, zipped([PICKLE, replace(STORAGE, **changes)]), *mentions, error=error)


def directory_cases() -> Iterator[Case]:
    yield case("only_magic", b"PK\3\4", "end record at byte 4")
    yield case("no_end", WHOLE[:-22], "a record in the last 65,557 bytes, found none")
    yield case("tail", WHOLE + b"x", "end record", "found none")
    yield case("no_members", b"PK\3\4" + zipped([], directory_offset=4), "found 0 members")
    yield case("no_pickle", zipped([STORAGE]), "found 1 members and none of that name")
    yield case(
        "deep_pickle", zipped([replace(PICKLE, name="a/b/data.pkl"), STORAGE]), "none of that name"
    )
    yield case(
        "two_pickles",
        zipped([PICKLE, replace(PICKLE, name="y/data.pkl")]),
        "'y/data.pkl'",
        "one data.pkl",
    )
    yield case("twice", zipped([PICKLE, STORAGE, STORAGE]), "'x/data/0'", "each name once")
    yield case(
        "disk",
        zipped([PICKLE, STORAGE], disk=1),
        "an archive in one part",
        error="UnsupportedError",
    )
    yield case(
        "count_more",
        zipped([PICKLE, STORAGE], count=3),
        "at most 2 (what the directory can hold), found 3",
    )
    yield case(
        "count_most",
        zipped([PICKLE, STORAGE], count=0xFFFF),
        "at most 2 (what the directory can hold)",
    )
    yield case("count_fewer", zipped([PICKLE, STORAGE], count=1), "1 members, found more bytes")
    for name, size in [("short", _DIRECTORY - 1), ("long", _DIRECTORY + 1), ("max", 0xFFFFFFFF)]:
        yield case(
            f"directory_{name}", zipped([PICKLE, STORAGE], directory_size=size), "directory offset"
        )
    yield case("directory_offset", zipped([PICKLE, STORAGE], directory_offset=3), "directory at 3")
    yield case(
        "directory_offset_max",
        zipped([PICKLE, STORAGE], directory_offset=0xFFFFFFFF),
        "found a directory at 4,294,967,295",
    )


def zip64_cases() -> Iterator[Case]:
    at = _MEMBERS + _DIRECTORY
    for name, wide, words in [
        ("count", zip64_end(3, _DIRECTORY, _MEMBERS, at), "count at byte"),
        ("size", zip64_end(2, 1 << 62, _MEMBERS, at), "directory size at byte"),
        ("offset", zip64_end(2, _DIRECTORY, (1 << 64) - 1, at), "directory offset at byte"),
        ("record", zip64_end(2, _DIRECTORY, _MEMBERS, 1 << 63), "record at byte"),
        ("signature", zip64_end(2, _DIRECTORY, _MEMBERS, 0), "expected PK\\6\\6, found another"),
        ("length", zip64_end(2, _DIRECTORY, _MEMBERS, at, record=43), "where the locator starts"),
        (
            "length_max",
            zip64_end(2, _DIRECTORY, _MEMBERS, at, record=(1 << 64) - 1),
            "where the locator starts",
        ),
        (
            "here",
            zip64_end(2, _DIRECTORY, _MEMBERS, at, here=1),
            "expected 1 as on this disk, found 2",
        ),
    ]:
        yield case(f"zip64_{name}", zipped([PICKLE, STORAGE], zip64=wide), words)
    far = zip64_end(1 << 60, _DIRECTORY, _MEMBERS, at)
    yield case(
        "zip64_count_max", zipped([PICKLE, STORAGE], zip64=far, count=0xFFFF), "at most 2 (what the"
    )
    yield case(
        "zip64_disk",
        zipped([PICKLE, STORAGE], zip64=zip64_end(2, 1, 1, at, disk=1)),
        "one part",
        error="UnsupportedError",
    )


def member_cases() -> Iterator[Case]:
    yield member("central_signature", "entry 2 of 2: signature", central_signature=b"PK\1\1")
    yield member("local_signature", "'x/data/0': signature", local_signature=b"PK\3\3")
    yield member("encrypted", "without encryption", flags=1, error="UnsupportedError")
    yield member("masked", "without encryption", flags=1 << 13, error="UnsupportedError")
    yield member(
        "method", "0 (stored) or 8 (deflated), found 14", method=14, error="UnsupportedError"
    )
    yield member("disk_of_member", "one part", disk=7, error="UnsupportedError")
    yield member("name_empty", "UTF-8 without zero bytes", name=b"")
    yield member("name_not_utf8", "UTF-8 without zero bytes", name=b"x/\xff")
    yield member("name_nul", "UTF-8 without zero bytes", name=b"x/data/0\0")
    yield member(
        "local_name", "'x/data/0' as in the directory, found 'x/data/1'", local_name=b"x/data/1"
    )
    yield member("local_method", "flags and method as in the directory", local_method=8)
    yield member("local_size", "CRC and sizes as in the directory", local_nbytes=15)
    yield member("stored_size", "16 bytes as stored, found 17", nbytes=17)
    yield member(
        "packed_past", "data that end before the directory", packed=1 << 20, nbytes=1 << 20
    )
    yield member("offset_past", "an offset before the directory", offset=1 << 20)
    yield member("offset_near_end", "the end of the members after 3", offset=_MEMBERS - 3)
    yield member("offset_of_other", "'x/data/0' as in the directory, found 'x/data.pkl'", offset=0)
    yield member("offset_wide", "zip64 sizes", offset=0xFFFFFFFF)
    yield member("size_wide", "zip64 sizes", "in the extra field, found none", nbytes=0xFFFFFFFF)
    extra = struct.pack("<HHQ", 1, 8, 1 << 63)
    yield member("size_wide_max", "as stored", nbytes=0xFFFFFFFF, extra=extra, flags=8)
    short = struct.pack("<HHI", 1, 4, 1)
    yield member("extra_short", "expected 8 bytes, found 4", nbytes=0xFFFFFFFF, extra=short)
    yield member("extra_past", "extra field", "found 9", extra=struct.pack("<HHQ", 7, 9, 1))
    yield member("bomb", "at most 1,032 times", deflated=True, nbytes=1 << 31)
    inner = zipped([PICKLE, replace(STORAGE, packed=14, nbytes=14, flags=8)])
    yield case("short_member", inner, "16 bytes as member 'x/data/0', found 14 bytes")
    yield case(
        "crc", zipped([replace(PICKLE, crc=1), STORAGE]), "'x/data.pkl': CRC", "expected 1, found"
    )
    yield case("no_storage", zipped([PICKLE]), "'x/data/0', found no such member")
    yield case(
        "big_endian",
        zipped([PICKLE, STORAGE, Member("x/byteorder", b"big")]),
        "expected 'little', found 'big'",
        error="UnsupportedError",
    )
    overlap = [
        PICKLE,
        replace(STORAGE, packed=90, nbytes=90, flags=8),
        Member("x/data/1", bytes(200)),
    ]
    yield case("overlap", zipped(overlap), "after member 'x/data/0'")


CASES = [*directory_cases(), *zip64_cases(), *member_cases()]
