"""Malformed and hostile files of torch.save, one per branch of the loader; and valid ones."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pickle_cases
import zip_cases
from cases import Case
from torch_builder import (
    EMPTY_LIST,
    EMPTY_TUPLE,
    FALSE,
    HOOKS,
    MAGIC,
    MARK,
    NONE,
    PICKLE,
    REDUCE,
    STORAGE,
    archive,
    dict_of,
    long,
    named,
    number,
    pickled,
    storage,
    stream,
    tensor,
    text,
    tuple_of,
    weights,
    zipped,
)

MARKER = pickle_cases.MARKER
VALID = {
    "zip": zip_cases.WHOLE,
    "comment": zipped([PICKLE, STORAGE], comment=b"PK\5\6 and more"),
    "no_folder": zipped([replace(PICKLE, name="data.pkl"), replace(STORAGE, name="data/0")]),
    "zip64": zipped(
        [PICKLE, STORAGE],
        zip64=zip_cases.WIDE,
        count=0xFFFF,
        directory_size=0xFFFFFFFF,
        directory_offset=0xFFFFFFFF,
    ),
    "stream": stream(),
    "old_view": stream(
        weights(tensor((2,), (1,), of=storage(more=tuple_of(text("v"), number(2), number(2)))))
    ),
    "version_1": archive(dict_of(text("w"), tensor(more=b"", rebuild="_rebuild_tensor"))),
    "zip_of_python_2": archive(
        named("collections", "OrderedDict"),
        tuple_of(EMPTY_LIST + MARK + EMPTY_LIST + MARK + b"U\1w" + tensor() + b"e" + b"e"),
        REDUCE,
    ),
}


_V3: dict[str, Any] = {"rebuild": "_rebuild_tensor_v3"}
_UNTYPED = storage(named("torch.storage", "UntypedStorage"), n=number(16))
# A tensor, and what is said of it.
_TENSOR_FAULTS = [
    (
        "too_large",
        tensor((2, 3), (3, 1)),
        "within the 16 bytes of its storage, found an end at 24",
    ),
    ("offset", tensor(first=1), "found an end at 20"),
    ("offset_max", tensor(first=(1 << 63) - 1), "storage offset"),
    ("offset_negative", tensor(first=-1), "an integer of 0 or more, found -1"),
    ("offset_of_empty", tensor((0,), (1,), first=5), "found an end at 20"),
    ("stride", tensor((2, 2), (4, 1)), "found an end at 24"),
    ("stride_max", tensor((2, 2), ((1 << 63) - 1, 1)), "an end beyond 2^64"),
    ("stride_negative", tensor((2, 2), (-2, 1)), "strides at byte"),
    ("stride_missing", tensor((2, 2), (1,)), "2, one per dimension, found 1"),
    ("shape_negative", tensor((-2, 2)), "shape at byte"),
    ("shape_huge", tensor((1 << 62, 1 << 62)), "fewer than 2^63 values"),
    ("shape_bytes", tensor((1 << 62,), (0,)), "fewer than 2^64 bytes"),
    ("shape_list", tensor(shape_op=EMPTY_LIST), "a tuple of integers, found a list"),
    ("shape_text", tensor(shape_op=tuple_of(text("2"))), "found a text"),
    ("shape_float", tensor(shape_op=tuple_of(b"G" + bytes(8))), "found a float"),
    (
        "shape_big",
        tensor(shape_op=tuple_of(long(1 << 64))),
        "an integer of 0 or more, found a number",
    ),
    ("dims", tensor((1,) * 65, (1,) * 65), "at most 64 dimensions"),
    ("few_arguments", tensor(more=b""), "6 to 7 for torch._utils._rebuild_tensor_v2, found 4"),
    ("many_arguments", tensor(more=FALSE + HOOKS + NONE + NONE), "found 8"),
    (
        "metadata",
        tensor(more=FALSE + HOOKS + dict_of(text("odd"), b"\x88")),
        "conj or neg, found 'odd'",
    ),
    (
        "metadata_long",
        tensor(more=FALSE + HOOKS + dict_of(*[text("neg"), b"\x89"] * 3)),
        "conj and neg, found 3 entries",
    ),
    (
        "metadata_number",
        tensor(more=FALSE + HOOKS + dict_of(text("neg"), number(1))),
        "true or false, found a number",
    ),
    ("no_storage", tensor(of=NONE), "a storage, found a None"),
    ("storage_list", tensor(of=EMPTY_LIST), "a storage, found a list"),
    ("tag", tensor(of=storage(tag=text("module"))), "expected 'storage', found 'module'"),
    ("tag_number", tensor(of=storage(tag=number(1))), "expected 'storage', found a number"),
    ("id_text", tensor(of=text("0") + b"Q"), "a tuple of 5 or 6, found a text"),
    ("id_short", tensor(of=tuple_of(text("storage")) + b"Q"), "a tuple of 5 or 6"),
    (
        "class_text",
        tensor(of=storage(text("FloatStorage"))),
        "the class of a storage, found a text",
    ),
    (
        "class_dict",
        tensor(of=storage(named("collections", "OrderedDict"))),
        "the class of a storage",
    ),
    ("class_dtype", tensor(of=storage(named("torch", "int8"))), "the class of a storage"),
    ("key_number", tensor(of=storage(key=number(0))), "the key of a storage, found a number"),
    ("key_empty", tensor(of=storage(key=text(""))), "the key of a storage"),
    ("key_unknown", tensor(of=storage(key=text("7"))), "'x/data/7', found no such member"),
    ("key_up", tensor(of=storage(key=text("../data.pkl"))), "found no such member"),
    ("numel", tensor(of=storage(n=number(5))), "expected 20 bytes as member"),
    ("numel_negative", tensor(of=storage(n=number(-1))), "an integer of 0 or more"),
    ("numel_max", tensor(of=storage(n=long((1 << 63) - 1))), "fewer than 2^64 bytes"),
    (
        "numel_large",
        tensor((1 << 60,), (1,), of=storage(n=long(1 << 60))),
        "4,611,686,018,427,387,904 bytes",
    ),
    ("numel_text", tensor(of=storage(n=text("4"))), "found a text"),
    ("view_number", tensor(of=storage(more=number(1))), "a tuple of 3, found a number"),
    (
        "view_far",
        tensor(of=storage(more=tuple_of(text("v"), number(1), number(4)))),
        "found an end at 20",
    ),
    (
        "view_max",
        tensor(first=1, of=storage(more=tuple_of(text("v"), long((1 << 63) - 1), number(4)))),
        "storage offset",
    ),
    (
        "v1_arguments",
        tensor(rebuild="_rebuild_tensor"),
        "4 to 4 for torch._utils._rebuild_tensor",
    ),
    ("v3_without_dtype", tensor(**_V3), "7 to 8 for torch._utils._rebuild_tensor_v3, found 6"),
    (
        "v3_text",
        tensor(of=_UNTYPED, more=FALSE + HOOKS + text("int8"), **_V3),
        "a dtype, found a text",
    ),
    (
        "v3_unknown",
        tensor(of=_UNTYPED, more=FALSE + HOOKS + named("torch", "quint8"), **_V3),
        "found torch.quint8",
    ),
    (
        "v3_size",
        tensor((3,), (1,), of=_UNTYPED, more=FALSE + HOOKS + named("torch", "float64"), **_V3),
        "found an end at 24",
    ),
    (
        "not_called",
        named("torch._utils", "_rebuild_tensor_v2") + text("a") + REDUCE,
        "a tuple, found a text",
    ),
]


def tensor_cases() -> Iterator[Case]:
    def case(name: str, body: bytes, *mentions: str) -> Case:
        return Case(f"tensor_{name}", archive(body), ("data.pkl: ", *mentions))

    for name, body, words in _TENSOR_FAULTS:
        yield case(name, body, words)


def stream_cases() -> Iterator[Case]:
    def case(name: str, data: bytes, *mentions: str, error: str = "FormatError") -> Case:
        return Case(f"stream_{name}", data, mentions, error)

    n4 = struct.pack("<Q", 4)
    yield case("plain", weights(), "the magic number of torch.save")
    yield case(
        "plain_data",
        pickle.dumps({"w": [1, 2.5, None, "x"]}, 4),
        "the magic number of torch.save",
    )
    yield case("magic", stream(magic=pickled(long(1 << 70))), "the magic number")
    yield case("version", stream(version=pickled(number(1002))), "version 1001")
    yield case("version_text", stream(version=pickled(text("1001"))), "version 1001")
    big = pickled(dict_of(text("little_endian"), FALSE))
    yield case(
        "big_endian", stream(machine=big), "found a big-endian one", error="UnsupportedError"
    )
    yield case("keys_tuple", stream(keys=pickled(EMPTY_TUPLE)), "keys at byte", "a list")
    yield case("keys_numbers", stream(keys=pickled(EMPTY_LIST, number(0), b"a")), "strings")
    yield case("keys_none", stream(keys=pickled(EMPTY_LIST), data=b""), "list of storages")
    yield case(
        "keys_other",
        stream(keys=pickled(EMPTY_LIST, text("1"), b"a")),
        "a storage that the contents use, found '1'",
    )
    twice = pickled(EMPTY_LIST, MARK, text("0"), text("0"), b"e")
    yield case("keys_twice", stream(keys=twice), "'0' twice")
    yield case("no_data", stream(data=b""), "number of elements at byte", "8 bytes")
    yield case("data_short", stream(data=n4 + bytes(15)), "data at byte", "16 bytes")
    yield case("data_more", stream(data=n4 + bytes(17)), "the end of the file, found 1 bytes more")
    yield case(
        "data_count", stream(data=struct.pack("<Q", 5) + bytes(20)), "4 as in the contents, found 5"
    )
    yield case("data_count_max", stream(data=bytes([255] * 8)), "found 18,446,744,073,709,551,615")
    far = weights(tensor((1 << 60,), (1,), of=storage(n=long(1 << 60))))
    yield case("data_large", stream(far, data=struct.pack("<Q", 1 << 60)), "data at byte")
    two = weights(tensor(), tensor((4,), (1,), of=storage(named("torch", "DoubleStorage"))))
    yield case("two_types", stream(two), "as in the contents")


CASES = [
    *zip_cases.CASES,
    *pickle_cases.CASES,
    *tensor_cases(),
    *stream_cases(),
]
_STREAM = stream()
CUTS = [
    *(Case(f"zip_cut_{n}", zip_cases.WHOLE[:n], ()) for n in range(4, len(zip_cases.WHOLE), 3)),
    *(Case(f"stream_cut_{n}", _STREAM[:n], ()) for n in range(len(MAGIC), len(_STREAM))),
]


def spread(kind: str, n: int) -> bytes:
    """A file of 2 bytes or more whose one tensor has n elements, all the same one."""
    of = storage(named("torch", kind))
    return zipped([replace(PICKLE, data=weights(tensor((n,), (0,), of=of))), STORAGE])


def large_stream(n: int) -> tuple[bytes, bytes]:
    """A stream whose one tensor has n floats: what comes before them and behind."""
    contents = weights(tensor((n,), (1,), of=storage(n=number(n))))
    return stream(contents, data=struct.pack("<Q", n)), b""


def large_zip(n: int) -> tuple[bytes, bytes]:
    """The same as an archive."""
    contents = weights(tensor((n,), (1,), of=storage(n=number(n))))
    floats = replace(STORAGE, data=b"", nbytes=4 * n, packed=4 * n)
    members = [replace(PICKLE, data=contents), floats]
    at = zipped(members).index(b"PK\1\2")
    whole = zipped(members, directory_offset=at + 4 * n)
    return whole[:at], whole[at:]
