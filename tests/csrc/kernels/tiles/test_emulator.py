"""Tiles in software: against exact integers, by digests, and against the hardware where it is."""

from __future__ import annotations

import hashlib

import numpy as np
import pyflow_testing
import pytest
from numpy.typing import NDArray

from ..products import TILED
from . import tile_reference as reference

Tiles = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]
KINDS = ("any bits", "around the least normal number", "usual numbers")
# Of tile_dots("emulated", kind, ...) on the tiles below.
DIGESTS = {
    "s8": "6aaeb5a312fcc99d",
    "su8": "36930ee3028108c7",
    "any bits": "63aeb6b7e4960bf6",
    "around the least normal number": "c1275cb886d1a5b8",
    "usual numbers": "f0b521277ef466c7",
}
hardware = pytest.mark.skipif("amx" not in TILED, reason="this CPU has no AMX")


def random_tiles(seed: int, n: int, kind: str) -> Tiles:
    """A and B of bf16 and C of f32, or bytes: n tiles each, from the raw words of a generator."""
    raw = np.random.PCG64(seed).random_raw(n * 3 * 128).astype("<u8").view("<u4")
    a, b, c = (part.copy() for part in raw.reshape(3, n * 256))
    if kind in KINDS[1:]:
        least, span = (56, 12) if kind == KINDS[1] else (120, 16)
        for part in (a, b):
            half = part.view("<u2")
            half[:] = half & 0x807F | (half >> 7) % span + least << 7
        first, many = (0, 6) if kind == KINDS[1] else (120, 16)
        c[:] = c & 0x807FFFFF | (c >> 23) % many + first << 23
    return a.view(np.uint8), b.view(np.uint8), c.view(np.uint8)


def dots(unit: str, kind: str, tiles: Tiles, rows: int = 16, depth: int = 16) -> NDArray[np.uint8]:
    a, b, c = tiles
    out = c.copy()
    pyflow_testing.tile_dots(unit, kind, a, b, out, rows, depth)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_bf16_are_those_of_exact_integers(kind: str) -> None:
    for i, (rows, depth) in enumerate([(16, 16), (3, 1), (2, 5), (1, 16)]):
        tiles = random_tiles(40 + i, 2, kind)
        found = dots("emulated", "bf16", tiles, rows, depth).view("<u4").reshape(2, 16, 16)
        a, b = (t.view("<u2").reshape(2, 16, 32).tolist() for t in tiles[:2])
        c = tiles[2].view("<u4").reshape(2, 16, 16)
        expected = c.copy()
        expected[:, rows:] = found[:, rows:]  # which are not stored
        np.testing.assert_array_equal(found[:, rows:], c[:, rows:])
        for t in range(2):
            columns = [[b[t][k // 2][2 * n + k % 2] for k in range(2 * depth)] for n in range(16)]
            for m in range(rows):
                for n in range(16):
                    row = a[t][m][: 2 * depth]
                    expected[t, m, n] = reference.dot_bf16(row, columns[n], int(c[t, m, n]))
        np.testing.assert_array_equal(found, expected)


LEAST = 0x00800000  # 2^-126
NAN, NEGATIVE_NAN, INFINITE = 0x7FC1, 0xFFA0, 0x7F80


@pytest.mark.parametrize(
    ("pairs", "c", "expected"),
    [
        # 2^-126 as the product of 2^-63 and itself, less what rounds up to it or not.
        ([(0x2000, 0x2000), (0x9A00, 0x1980)], 0, LEAST),  # - 2^-151
        ([(0x2000, 0x2000), (0x9A00, 0x1A00)], 0, 0),  # - 2^-150
        ([(0x2000, 0x2000), (0x9A40, 0x1980)], 0, 0),  # - 1.5 * 2^-151
        ([], 0x807FFFFF, 0),  # a subnormal, which counts as zero
        ([], 0x80000000, 0),  # chains begin at +0
        ([(0x0040, 0x7F00)], 0, 0),  # a subnormal times 2^127
        ([(NAN, 0x3F80)], 0x7F812345, 0x7FC12345),  # C before the chains
        ([(NAN, NEGATIVE_NAN)], 0, 0x7FC10000),  # A before B
        ([(0x3F80, NEGATIVE_NAN), (NAN, 0x3F80)], 0, 0x7FC10000),  # A before the chain
        ([(0x3F80, NEGATIVE_NAN), (0x3F80, 0)], 0, 0xFFE00000),
        ([(INFINITE, 0)], 0, reference.INVALID),
        ([(INFINITE, 0x3F80)], 0xFF800000, reference.INVALID),
    ],
)
def test_edges_of_bf16(pairs: list[tuple[int, int]], c: int, expected: int) -> None:
    a, b, sums = (np.zeros(1024, np.uint8) for _ in range(3))
    for i, (x, y) in enumerate(pairs):  # of even k
        a.view("<u2")[2 * i] = x
        b.view("<u2")[32 * i] = y
    sums.view("<u4")[0] = c
    for unit in ["emulated"] + ["hardware"] * ("amx" in TILED):
        assert hex(dots(unit, "bf16", (a, b, sums)).view("<u4")[0]) == hex(expected), unit


@pytest.mark.parametrize("kind", ["s8", "su8"])
def test_sums_of_bytes_wrap(kind: str) -> None:
    for rows, depth in [(16, 16), (5, 8), (16, 4), (1, 1)]:
        tiles = random_tiles(50 + rows, 3, kind)
        tiles[2].view("<u4")[::5] = 0x7FFFFFFF
        found = dots("emulated", kind, tiles, rows, depth).view("<u4").reshape(3, 16, 16)
        a = tiles[0].view(np.int8).reshape(3, 16, 64)[:, :rows, : 4 * depth].astype(np.int64)
        b = tiles[1].view(np.int8 if kind == "s8" else np.uint8).reshape(3, 16, 16, 4)
        b = b[:, :depth].transpose(0, 1, 3, 2).reshape(3, 4 * depth, 16).astype(np.int64)
        c = tiles[2].view("<u4").reshape(3, 16, 16)
        np.testing.assert_array_equal(found[:, :rows], (c[:, :rows] + a @ b) % 2**32)
        np.testing.assert_array_equal(found[:, rows:], c[:, rows:])


@pytest.mark.parametrize("unit", ["emulated", "plain"])
@pytest.mark.parametrize("kind", DIGESTS)
def test_the_emulator_gives_the_sums_that_it_gave(kind: str, unit: str) -> None:
    """250,000 sums for each kind, by AVX2 and without: a machine with AMX holds the same to its
    hardware."""
    op = kind if kind in ("s8", "su8") else "bf16"
    found = dots(unit, op, random_tiles(60, 1000, kind))
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == DIGESTS[kind]


def test_tiles_that_give_other_sums_are_found_before_they_are_used() -> None:
    assert pyflow_testing.agrees_with_emulator(wrong=False)
    assert not pyflow_testing.agrees_with_emulator(wrong=True)


@hardware
@pytest.mark.parametrize("kind", DIGESTS)
def test_the_hardware_gives_the_emulators_sums(kind: str) -> None:
    op = kind if kind in ("s8", "su8") else "bf16"
    sizes = [(16, 16, 1000), *((r, d, 20) for r in range(1, 17) for d in (1, 2, 7, 16))]
    for rows, depth, n in sizes:
        tiles = random_tiles(60 if n == 1000 else rows * 16 + depth, n, kind)
        expected = dots("emulated", op, tiles, rows, depth)
        np.testing.assert_array_equal(dots("hardware", op, tiles, rows, depth), expected)
