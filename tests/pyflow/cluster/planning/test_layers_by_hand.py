"""Layers that a user counts out, and how a split is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyflow.cluster.planning.plan import LayerCosts, describe, evaluate_split, parse_layers
from pyflow.cluster.wire.messages import Link
from pyflow.errors import ShapeError

from .test_plan import chain, rank


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(sum))
def test_layers_by_hand_are_ranges_of_these_lengths(lengths: list[int]) -> None:
    ranges = parse_layers(",".join(map(str, lengths)), sum(lengths), len(lengths))
    assert [len(part) for part in ranges] == lengths
    assert [k for part in ranges for k in part] == list(range(sum(lengths)))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("10,8,6", ["expected 4", "found 3", "'10,8,6'", "0"]),
        ("10,8,6,6,0", ["expected 4", "found 5"]),
        ("10,8,6,4", ["30", "28", "'10,8,6,4'", "add 2"]),
        ("10,8,6,9", ["30", "33", "'10,8,6,9'", "3"]),
        ("10,8,-6,6", ["10,8,6,6", "'10,8,-6,6'"]),
        ("10,8,6.0,6", ["'10,8,6.0,6'"]),
        ("10,8,,6", ["'10,8,,6'"]),
        ("", ["''"]),
        ("10,8,٦,6", ["10,8,٦,6"]),
        ("1" * 10_000, ["111"]),
    ],
)
def test_a_wrong_split_by_hand_is_refused(text: str, values: list[str]) -> None:
    with pytest.raises(ShapeError, match="layers") as caught:
        parse_layers(text, 30, 4)
    assert [value for value in values if value not in str(caught.value)] == []
    assert len(str(caught.value)) < 200


def test_a_split_is_told_to_people() -> None:
    layers = LayerCosts((3 * 2**20,) * 10, 2**20, 2 * 2**20, row_nbytes=4000)
    ranks = rank(0, 1, 1.5, embedding_ms=0.5), rank(3, 1, 2), rank(5, 2, 2, head_ms=1)
    pipeline = chain(*ranks, layers=layers, link=Link(0.001, 4e6))
    table, lines = describe(evaluate_split(pipeline, parse_layers("7,0,3", 10, 3), n_rows=2))
    assert table == [
        ("RANK", "HOST", "LAYERS", "MS", "MEMORY"),
        ("0", "host0", "0-6", "11.25", "22.0 MiB"),
        ("3", "host3", "none", "", ""),
        ("5", "host5", "7-9", "7.00", "11.0 MiB"),
    ]
    # 7 + 0.5, a hop of 1 + 1, 3 x 2 + 1, and 1 back
    assert lines == [
        "17.50 ms per token where each waits for the one before",
        "88.9 runs of 2 rows per second through a full pipeline; "
        "the slowest is rank 0 (host0) with 11.25 ms",
    ]
