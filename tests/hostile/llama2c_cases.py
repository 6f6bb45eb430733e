"""Malformed .bin files of llama2.c, and valid ones of both versions."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cases import Case

DIMS = (
    8,
    12,
    2,
    4,
    2,
    10,
    6,
)  # dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len


def n_weights(dims: tuple[int, ...], *, shared: bool) -> int:
    dim, hidden, layers, heads, kv_heads, vocab, _ = dims
    kv = dim // heads * kv_heads
    layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * hidden
    return vocab * dim * (1 if shared else 2) + layers * layer + dim


def floats(n: int) -> bytes:
    return struct.pack(f"<{n}f", *range(n))


def version_0(dims: tuple[int, ...] = DIMS, *, shared: bool = True) -> bytes:
    head = struct.pack("<7i", *dims[:5], dims[5] if shared else -dims[5], dims[6])
    tables = dims[6] * (dims[0] // dims[3] // 2) * 2
    return head + floats(n_weights(dims, shared=shared) + tables)


def version_1(dims: tuple[int, ...] = DIMS, *, shared: bool = True, version: int = 1) -> bytes:
    head = struct.pack("<Ii7iB", 0x616B3432, version, *dims, shared)
    return head.ljust(256, b"\0") + floats(n_weights(dims, shared=shared))


VALID = {
    "version_0": version_0(),
    "version_0_own_head": version_0(shared=False),
    "version_1": version_1(),
    "version_1_own_head": version_1(shared=False),
}


def cases() -> Iterator[Case]:
    size = "dims at byte"
    for name, data in VALID.items():
        yield Case(f"{name}_cut", data[:-1], (size, "dims that need"))
        yield Case(f"{name}_long", data + b"\0", (size, "dims that need"))
        yield Case(f"{name}_head_only", data[:300], (size,))
    for version in (0, 2, 3, -1):
        mentions = (f"version at byte 4: expected 1, found {version}",)
        data = version_1(version=version)
        yield Case(f"version_{version}".replace("-", "m"), data, mentions, "UnsupportedError")
    yield Case("header_cut", version_1()[:255], ("header at byte 0: expected 256 bytes",))
    for i, name in enumerate(
        ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
    ):
        for value in (0, -1, -(1 << 31), (1 << 31) - 1):
            data = bytearray(version_1())
            struct.pack_into("<i", data, 8 + 4 * i, value)
            label = f"{name}_{value & 0xFFFFFFFF:x}"
            yield Case(label, bytes(data), ("header: dims at byte 8: expected positive values",))
    for name, i, value in [("heads_odd", 3, 3), ("kv_heads_odd", 4, 3), ("kv_heads_more", 4, 8)]:
        data = bytearray(version_1())
        struct.pack_into("<i", data, 8 + 4 * i, value)
        yield Case(name, bytes(data), ("dims at byte 8",))


CASES = list(cases())
