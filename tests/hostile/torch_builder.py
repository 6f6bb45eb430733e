"""Writes what torch.save writes, byte by byte, so that every field can be wrong."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

MARK, STOP, NONE, EMPTY_TUPLE, EMPTY_LIST, EMPTY_DICT = b"(", b".", b"N", b")", b"]", b"}"
REDUCE, PERSID, FALSE = b"R", b"Q", b"\x89"


def text(s: str | bytes, *, length: int | None = None) -> bytes:
    s = s.encode() if isinstance(s, str) else s
    return b"X" + struct.pack("<I", len(s) if length is None else length) + s


def number(n: int) -> bytes:
    return b"J" + struct.pack("<i", n) if -(1 << 31) <= n < 1 << 31 else long(n)


def long(n: int) -> bytes:
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def tuple_of(*items: bytes) -> bytes:
    return MARK + b"".join(items) + b"t"


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def dict_of(*items: bytes) -> bytes:
    return EMPTY_DICT + MARK + b"".join(items) + b"u"


def storage(
    kind: bytes = named("torch", "FloatStorage"),
    key: bytes = text("0"),
    n: bytes = number(4),
    *,
    tag: bytes = text("storage"),
    more: bytes = b"",
) -> bytes:
    return tuple_of(tag, kind, key, text("cpu"), n, more) + PERSID


HOOKS = named("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE


def tensor(
    shape: Sequence[int] = (2, 2),
    strides: Sequence[int] = (2, 1),
    first: int = 0,
    *,
    of: bytes = storage(),
    shape_op: bytes | None = None,
    strides_op: bytes | None = None,
    more: bytes = FALSE + HOOKS,
    rebuild: str = "_rebuild_tensor_v2",
) -> bytes:
    return (
        named("torch._utils", rebuild)
        + tuple_of(
            of,
            number(first),
            tuple_of(*map(number, shape)) if shape_op is None else shape_op,
            tuple_of(*map(number, strides)) if strides_op is None else strides_op,
            more,
        )
        + REDUCE
    )


def pickled(*body: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + b"".join(body) + STOP


def weights(*tensors: bytes) -> bytes:
    """The pickle of a dict of tensors."""
    return pickled(dict_of(*(text(f"w{i}") + t for i, t in enumerate(tensors or (tensor(),)))))


@dataclass(frozen=True)
class Member:
    """A member of a zip archive; what is not given is right."""

    name: str | bytes
    data: bytes
    deflated: bool = False
    crc: int | None = None
    nbytes: int | None = None
    packed: int | None = None
    flags: int = 0
    method: int | None = None
    local_name: bytes | None = None
    local_nbytes: int | None = None
    local_method: int | None = None
    local_signature: bytes = b"PK\3\4"
    central_signature: bytes = b"PK\1\2"
    offset: int | None = None
    disk: int = 0
    extra: bytes = b""
    local_extra: bytes = b""


def zipped(
    members: Iterable[Member],
    *,
    count: int | None = None,
    directory_size: int | None = None,
    directory_offset: int | None = None,
    comment: bytes = b"",
    disk: int = 0,
    zip64: bytes | None = None,
    tail: bytes = b"",
) -> bytes:
    out, directory, n = b"", b"", 0
    for m in members:
        name = m.name.encode() if isinstance(m.name, str) else m.name
        data = m.data
        if m.deflated:
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
            data = packer.compress(data) + packer.flush()
        crc = zlib.crc32(m.data) if m.crc is None else m.crc
        nbytes = len(m.data) if m.nbytes is None else m.nbytes
        packed = len(data) if m.packed is None else m.packed
        method = 8 * m.deflated if m.method is None else m.method
        local_nbytes = nbytes if m.local_nbytes is None else m.local_nbytes
        local_method = method if m.local_method is None else m.local_method
        local_name = name if m.local_name is None else m.local_name
        offset = len(out) if m.offset is None else m.offset
        out += m.local_signature + struct.pack(
            "<HHHHHIIIHH",
            20,
            m.flags,
            local_method,
            0,
            0,
            crc,
            packed,
            local_nbytes,
            len(local_name),
            len(m.local_extra),
        )
        out += local_name + m.local_extra + data
        directory += m.central_signature + struct.pack(
            "<HHHHHHIIIHHHHHII",
            20,
            20,
            m.flags,
            method,
            0,
            0,
            crc,
            packed,
            nbytes,
            len(name),
            len(m.extra),
            0,
            m.disk,
            0,
            0,
            offset,
        )
        directory += name + m.extra
        n += 1
    start = len(out) if directory_offset is None else directory_offset
    size = len(directory) if directory_size is None else directory_size
    n = n if count is None else count
    end = b"PK\5\6" + struct.pack("<HHHHIIH", disk, disk, n, n, size, start, len(comment))
    return out + directory + (zip64 or b"") + end + comment + tail


def zip64_end(
    count: int,
    size: int,
    offset: int,
    at: int,
    *,
    record: int = 44,
    disk: int = 0,
    here: int | None = None,
) -> bytes:
    """A zip64 record and its locator; `at` is where the record is."""
    here = count if here is None else here
    fields = struct.pack("<QHHIIQQQQ", record, 45, 45, disk, disk, here, count, size, offset)
    return b"PK\6\6" + fields + b"PK\6\7" + struct.pack("<IQI", disk, at, 1)


PICKLE = Member("x/data.pkl", weights())
STORAGE = Member("x/data/0", bytes(range(16)))


def archive(*pickle: bytes, **changes: object) -> bytes:
    """A checkpoint whose data.pkl is a pickle of these opcodes."""
    return zipped([replace(PICKLE, data=pickled(*pickle)), STORAGE], **changes)  # type: ignore[arg-type]


MAGIC = pickled(long(0x1950A86A20F9469CFC6C))
VERSION = pickled(number(1001))
MACHINE = pickled(dict_of(text("little_endian"), b"\x88"))


def stream(
    contents: bytes | None = None,
    keys: bytes | None = None,
    data: bytes = struct.pack("<Q", 4) + bytes(range(16)),
    *,
    magic: bytes = MAGIC,
    version: bytes = VERSION,
    machine: bytes = MACHINE,
) -> bytes:
    contents = weights() if contents is None else contents
    keys = pickled(EMPTY_LIST, text("0"), b"a") if keys is None else keys
    return magic + version + machine + contents + keys + data


def write_pt(path: Path, tensors: Mapping[str, NDArray[Any]], kind: str) -> None:
    """A file as torch.save writes it; arrays that are one object share a storage."""
    keys = {id(v): str(i) for i, v in enumerate({id(v): v for v in tensors.values()}.values())}
    lines = []
    for name, v in tensors.items():
        of = storage(
            named("torch", kind),
            text(keys[id(v)]),
            number(v.size),
        )
        strides = [s // v.itemsize for s in v.strides]
        lines.append(text(name) + tensor(v.shape, strides, of=of))
    contents = pickled(dict_of(*lines))
    members = [Member("x/data.pkl", contents)]
    for v in {id(v): v for v in tensors.values()}.values():
        members.append(Member(f"x/data/{keys[id(v)]}", v.tobytes("A")))
    path.write_bytes(zipped(members))
