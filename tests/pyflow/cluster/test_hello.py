"""Ranks that cannot be one pipeline are told apart, all at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyflow import PyflowError
from pyflow.cluster.hello import check, check_ranges, layers_of
from pyflow.cluster.messages import Hello
from pyflow.errors import ShapeError

RANGES = [range(0, 10), range(10, 10), range(10, 30)]
HELLOS = [
    Hello(0, rank, f"host{rank}", 100, "0.1.0", 64 * "a", "avx2", layers.start, layers.stop)
    for rank, layers in enumerate(RANGES)
]


def test_ranks_fit_together_on_any_instruction_set() -> None:
    check(HELLOS, RANGES)
    check([HELLOS[0], replace(HELLOS[1], isa="scalar", pid=7), HELLOS[2]], RANGES)
    check(HELLOS[:1], RANGES[:1])


def test_all_differences_are_in_one_message() -> None:
    other = replace(HELLOS[1], version="0.0.9", model=63 * "a" + "b", last=11)
    with pytest.raises(PyflowError) as caught:
        check([HELLOS[0], other, replace(HELLOS[2], version="0.2.0")], RANGES)
    assert str(caught.value) == (
        "ranks differ from rank 0 (host0): "
        "rank 1 (host1): pyflow: expected 0.1.0, found 0.0.9; "
        f"rank 1 (host1): model: expected {64 * 'a'}, found {63 * 'a'}b; "
        "rank 1 (host1): layers: expected [10, 10), found [10, 11); "
        "rank 2 (host2): pyflow: expected 0.1.0, found 0.2.0; "
        "give all the same file, give all the same layers, install the same pyflow on all"
    )


@pytest.mark.parametrize("n", [1, 2, 4])
def test_there_are_as_many_ranks_as_were_given_layers(n: int) -> None:
    hellos = [*HELLOS, replace(HELLOS[1], rank=3, host="host3", first=0, last=0)][:n]
    with pytest.raises(PyflowError, match=f"expected 3 ranks, found {n}: 0 on host0") as caught:
        check(hellos, RANGES)
    assert "start 3 with the mpiexec" in str(caught.value)
    assert layers_of(3, RANGES) == range(0)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [range(0, 10), range(11, 30)],
        [range(0, 10), range(9, 30)],
        [range(10, 30), range(0, 10)],
        [range(0, 29)],
        [range(0, 31)],
    ],
)
def test_the_ranges_hold_each_layer_once_and_in_order(ranges: list[range]) -> None:
    check_ranges(RANGES, 30)
    with pytest.raises(ShapeError, match="layers: expected 0 to 29 in order, found"):
        check_ranges(ranges, 30)
