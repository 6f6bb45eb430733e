"""Ranks that cannot be one pipeline are told apart, all at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pyflow import PyflowError
from pyflow.cluster.mpi.handshake import check, check_ranges
from pyflow.cluster.wire.messages import Hello
from pyflow.errors import ShapeError

RANGES = [range(0, 10), range(10, 10), range(10, 30)]
HELLOS = [
    Hello(0, rank, f"host{rank}", 100, "0.1.0", 64 * "a", "avx2") for rank in range(len(RANGES))
]


def test_ranks_fit_together_on_any_instruction_set() -> None:
    check(HELLOS)
    check([HELLOS[0], replace(HELLOS[1], isa="scalar", pid=7), HELLOS[2]])
    check(HELLOS[:1])
    check([HELLOS[0], replace(HELLOS[1], device="gpu 0 (A card)"), HELLOS[2]])


def test_inexact_devices_are_not_mixed_with_others() -> None:
    card = replace(HELLOS[1], device="gpu 0 (A card)", inexact="gpu 0 (A card), inexact")
    check([replace(card, rank=0), card])
    for others in ([HELLOS[0], card], [replace(card, rank=0), HELLOS[1]]):
        with pytest.raises(PyflowError, match=r"arithmetic: .*; leave devices out"):
            check(others)


def test_all_differences_are_in_one_message() -> None:
    other = replace(HELLOS[1], version="0.0.9", model=63 * "a" + "b")
    with pytest.raises(PyflowError) as caught:
        check([HELLOS[0], other, replace(HELLOS[2], version="0.2.0")])
    assert str(caught.value) == (
        "ranks differ from rank 0 (host0): "
        "rank 1 (host1): pyflow: expected 0.1.0, found 0.0.9; "
        f"rank 1 (host1): model: expected {64 * 'a'}, found {63 * 'a'}b; "
        "rank 2 (host2): pyflow: expected 0.1.0, found 0.2.0; "
        "give all the same file and options, install the same pyflow on all"
    )


@pytest.mark.parametrize("n", [1, 2, 4])
def test_there_are_as_many_ranks_as_were_given_layers(n: int) -> None:
    hellos = [*HELLOS, replace(HELLOS[1], rank=3, host="host3")][:n]
    with pytest.raises(PyflowError, match=rf"3.*{n}.*0 on host0") as caught:
        check_ranges(RANGES, hellos, 30)
    assert "start 3 with the mpiexec" in str(caught.value)


@pytest.mark.parametrize(
    "ranges",
    [
        [range(0, 10), range(10, 10), range(11, 30)],
        [range(0, 10), range(9, 30), range(30, 30)],
        [range(10, 30), range(0, 10), range(10, 10)],
        [range(0, 0), range(0, 29), range(29, 29)],
        [range(0, 31), range(31, 31), range(31, 31)],
    ],
)
def test_the_ranges_hold_each_layer_once_and_in_order(ranges: list[range]) -> None:
    check_ranges(RANGES, HELLOS, 30)
    with pytest.raises(ShapeError, match=r"layers: .*29"):
        check_ranges(ranges, HELLOS, 30)
