"""Coupled noise: Gumbel numbers of seed, stream, position and token."""

from __future__ import annotations

import numpy as np
import pyflow_testing
import pytest

MASK32 = 0xFFFFFFFF


def reference_philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK32, (a >> 32) ^ c[3] ^ k[1], a & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123's kat_vectors, philox4x32 10
        ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    def words(text: str) -> list[int]:
        return [int(w, 16) for w in text.split()]

    assert pyflow_testing.philox4x32(words(counter), words(key)) == words(expected)
    assert reference_philox(words(counter), words(key)) == words(expected)


@pytest.mark.parametrize(
    ("seed", "stream", "position"), [(0, 0, 0), (1, 2, 3), (2**64 - 1, 2**32 - 1, 2**40 + 5)]
)
def test_noise_is_gumbel_of_the_counter(seed: int, stream: int, position: int) -> None:
    tokens = np.array([0, 1, 2, 3, 49151, 262143, 2**31 - 1], np.int32)
    expected = []
    for t in tokens.tolist():
        c = [t // 2, stream, position & MASK32, position >> 32]
        r = reference_philox(c, [seed & MASK32, seed >> 32])
        word = r[2 * (t % 2) + 1] << 32 | r[2 * (t % 2)]
        u = ((word >> 12) + 0.5) * 2.0**-52
        expected.append(-np.log(-np.log(u)))
    found = pyflow_testing.gumbel(seed, stream, position, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-15)


def test_noise_bits_never_change() -> None:
    # Our own logarithm, not libm's: the same bits on every machine, so a seed gives the same text.
    found = pyflow_testing.gumbel(42, 7, 1000, np.arange(8, dtype=np.int32))
    assert [float(x).hex() for x in found] == [
        "-0x1.0aee65d24c36ep+0",
        "0x1.ae058be0bd428p+0",
        "-0x1.3c04a8601f2f4p-1",
        "0x1.8ba863127ad4ap-2",
        "0x1.6ea931d4b2e8ap-3",
        "0x1.f3b8773479641p+0",
        "-0x1.3e12ac9f50b19p-5",
        "0x1.648bf007df964p-3",
    ]


def test_noise_has_the_moments_of_gumbel() -> None:
    x = pyflow_testing.gumbel(5, 0, 0, np.arange(400_000, dtype=np.int32))
    assert abs(x.mean() - np.euler_gamma) < 5 * 1.2825 / np.sqrt(x.size)
    assert abs(x.var() - np.pi**2 / 6) < 0.03
    assert x.max() < 36.8
    assert x.min() > -3.7


def test_noise_differs_by_seed_stream_position_and_token() -> None:
    tokens = np.arange(64, dtype=np.int32)
    rows = [(0, 0, 0), (1, 0, 0), (1 << 32, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1 << 32)]
    values = np.concatenate([pyflow_testing.gumbel(*row, tokens) for row in rows])
    assert np.unique(values).size == values.size
