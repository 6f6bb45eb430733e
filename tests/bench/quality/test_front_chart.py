"""bench/quality/front_chart.py: what the chart shows, and that its names can be read."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.text import Text

Bench = Callable[[str], ModuleType]
BASE = ("folder/base-f16.gguf", 16.0, 15.6, 34.0)
# Bits, perplexity and speed of types, some of them close to each other.
TYPES = [
    ("q8_0", 8.5, 15.67, 61.0),
    ("q8_b64", 8.5, 15.68, 60.0),
    ("q6_k", 6.56, 15.83, 75.0),
    ("q6_b64", 6.5, 15.84, 77.0),
    ("q5_k_m", 5.6, 15.85, 86.0),
    ("q5_b64", 5.5, 15.862, 88.0),
    ("q4_b32", 5.0, 16.787, 97.0),
    ("q4_k_m", 4.8, 16.2, 99.0),
    ("iq4_xs", 4.25, 16.6, 105.0),
    ("q3h_k", 3.75, 18.9, 110.0),
    ("q3_b32", 4.0, 22.2, 109.0),
]


def row(name: str, bits: float, ppl: float, speed: float, error: float = 0.1) -> dict[str, Any]:
    return {
        "model": name,
        "bits_per_weight": bits,
        "ppl": ppl,
        "stderr": 10 * error,
        "ppl_change": {"mean": ppl / BASE[2] - 1, "stderr": error / BASE[2]},
        "tg_per_second": {"mean": speed, "stddev": 1.0},
    }


ROWS = [row(*each) for each in (BASE, *TYPES)]


def line(axis: Any, label: str) -> list[tuple[float, float]]:
    """The points of the line whose label begins so."""
    (found,) = (each for each in axis.get_lines() if each.get_label().startswith(label))
    return [(x, y) for x, y in found.get_xydata().tolist()]


@pytest.fixture
def draw(bench: Bench) -> Callable[..., Any]:
    found: Callable[..., Any] = bench("quality/front_chart").draw
    return found


def box(bench: Bench, text: Any) -> Any:
    """Of an annotation without the line that leads to it, which it would count as its own."""
    renderer = text.figure.canvas.get_renderer()
    text.update_positions(renderer)
    return bench("quality/labels").Box(*Text.get_window_extent(text, renderer).extents.tolist())


def test_bits_are_drawn_against_perplexity_and_against_decoded_tokens(
    draw: Callable[..., Any],
) -> None:
    perplexity, speed = draw(ROWS, "how").axes
    for axis, key in ((perplexity, 2), (speed, 3)):
        assert axis.get_xlabel() == "bits per weight"
        drawn = {tuple(end) for each in axis.get_lines() for end in each.get_xydata().tolist()}
        assert drawn >= {(each[1], each[key]) for each in TYPES}
        assert {y for _, y in line(axis, "base base-f16 (16 bits): ")} == {BASE[key]}
        assert [text.get_text() for text in axis.texts] == [each[0] for each in TYPES]
    assert "perplexity" in perplexity.get_ylabel()
    assert "tokens/s" in speed.get_ylabel()
    bars, own = (each.get_children()[-1] for each in perplexity.containers)
    first = [[tuple(end) for end in bar.get_segments()[0]] for bar in (bars, own)]
    assert first[0] == [(8.5, pytest.approx(15.57)), (8.5, pytest.approx(15.77))]
    assert first[1] == [(8.5, pytest.approx(14.67)), (8.5, pytest.approx(16.67))]


def test_each_panel_has_its_front(draw: Callable[..., Any]) -> None:
    rows = [row(*BASE), row("a", 3, 20, 50), row("b", 4, 18, 90), row("c", 5, 19, 60)]
    perplexity, speed = draw([*rows, row("d", 6, 17, 40)], "how").axes
    # Below and to the left of it there is nothing.
    assert line(perplexity, "front: ") == [(3, 20), (4, 20), (4, 18), (6, 18), (6, 17)]
    # Above it and to its right there is nothing.
    assert line(speed, "front: ") == [(4, 90), (4, 60), (5, 60), (5, 40), (6, 40)]


def test_names_cover_neither_each_other_nor_points_and_stay_within(
    bench: Bench, draw: Callable[..., Any]
) -> None:
    rectangle = bench("quality/labels").Box
    figure = draw(ROWS, "how")
    for axis in figure.axes:
        boxes = [box(bench, text) for text in axis.texts]
        assert all(a.shared(b) == 0 for a, b in itertools.combinations(boxes, 2))
        space = rectangle(*axis.bbox.extents.tolist())
        assert all(each.shared(space) == pytest.approx(each.shared(each)) for each in boxes)
        for text in axis.texts:
            x, y = axis.transData.transform(text.xy).tolist()
            assert all(rectangle.around(x, y, 6, 6).shared(each) < 1 for each in boxes)


def test_a_chart_without_speeds_is_one_panel_and_what_is_far_off_gets_a_logarithm(
    draw: Callable[..., Any],
) -> None:
    far = [*ROWS, row("q2_k", 2.7, 900.0, 120.0, error=1000.0), row("$x$", 2.8, 40.0, 118.0)]
    assert [axis.get_yscale() for axis in draw(far, "how").axes] == ["log", "linear"]
    few = [{k: v for k, v in each.items() if k != "tg_per_second"} for each in far[:3]]
    few[1]["stderr"] = few[1]["ppl_change"]["stderr"] = math.inf  # of a single prediction
    figure = draw(few, "how")
    (axis,) = figure.axes
    assert axis.get_yscale() == "linear"


def test_the_chart_is_made_of_what_eval_compare_prints(bench: Bench, tmp_path: Path) -> None:
    facts = {"chunks": 2, "n_ctx": 64, "tokens": 62, "method": "chunks", "seconds": 1.0, "cpu": "x"}
    source, target = tmp_path / "compare.json", tmp_path / "one.png"
    source.write_text(json.dumps({**facts, "models": ROWS}))
    main = bench("quality/front_chart").main
    assert main([str(source), str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        main([str(target), str(source)])


def test_on_the_front_is_what_nothing_beats_in_both(bench: Bench) -> None:
    front = bench("quality/front_chart").front
    points = [(4.0, 0.1), (5.0, 0.1), (5.0, 0.02), (3.0, 0.5), (4.0, 0.1), (6.0, 0.01)]
    assert front(points) == [True, False, True, True, True, True]
