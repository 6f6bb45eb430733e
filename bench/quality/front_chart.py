"""Draw what bits per weight bring in perplexity and in speed of decoding.

    pyflow eval compare BASE --types TYPE,... -f TEXT -o json > compare.json
    python bench/quality/front_chart.py compare.json front.png

The base model is a dashed line, each other model a point; filled points are on the front.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labels import Point, name_points

_WIDTH, _HEIGHT = 5.0, 5.2
"""Of a panel in inches, of which two are to be read at 1000 pixels."""
_CHARS_PER_INCH = 14
"""Of text of 8 points."""
_LOG_FROM = 3.0
"""The ratio of perplexities from which on their axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn over bits per weight.

    value, bars: of a row; a bar is an error and its name. more_is_better: the front then also
    prefers more bits, since with fewer bits nearly everything is faster.
    """

    label: str
    front: str
    value: Callable[[dict[str, Any]], float]
    bars: Sequence[tuple[str, Callable[[dict[str, Any]], float]]]
    """The widest one last."""
    told: Callable[[dict[str, Any]], str]
    more_is_better: bool = False


def _paired(row: dict[str, Any]) -> float:
    """The error of a perplexity if the base's perplexity is exact."""
    change = row["ppl_change"]
    return float(row["ppl"] / (1 + change["mean"]) * change["stderr"])


# Models read the same text, so a difference of perplexities is more certain than either.
_PERPLEXITY = Panel(
    "perplexity (less is better)",
    "front: none has fewer bits and less perplexity",
    lambda row: row["ppl"],
    [
        ("± error of the difference from the base", _paired),
        ("± error of the perplexity itself", lambda row: row["stderr"]),
    ],
    lambda row: f"{row['ppl']:.4g} ± {row['stderr']:.2g}",
)
_DECODING = Panel(
    "decoded tokens/s (more is better)",
    "front: none of as many bits or more is faster",
    lambda row: row["tg_per_second"]["mean"],
    [("± standard deviation of runs", lambda row: row["tg_per_second"]["stddev"])],
    lambda row: f"{row['tg_per_second']['mean']:.4g} tokens/s",
    more_is_better=True,
)
_BAR_STYLES: Sequence[dict[str, Any]] = (
    {"elinewidth": 1.6, "capsize": 3, "ecolor": "C0"},
    {"elinewidth": 1.0, "capsize": 0, "ecolor": "0.75", "zorder": 1},
)


def _finite(error: float) -> float:
    """0 for the infinite error of a single prediction."""
    return error if math.isfinite(error) else 0.0


def front(points: Sequence[Point]) -> list[bool]:
    """For each point whether no other is at or below it in both numbers and below in one."""
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points) for a, b in points]


def draw(rows: Sequence[dict[str, Any]], told: str) -> Any:
    """A figure with a panel of perplexities, and one of speeds if the rows have them.

    rows: the models of the JSON, the base first. told: how they were measured.
    """
    panels = [_PERPLEXITY, *([_DECODING] if "tg_per_second" in rows[0] else [])]
    figure = _figure(_WIDTH * len(panels), _HEIGHT)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    drawn = [_draw(axis, panel, rows) for axis, panel in zip(axes, panels, strict=True)]
    width = round(_CHARS_PER_INCH * _WIDTH * len(panels))
    figure.supxlabel(textwrap.fill(told, width), fontsize=8, color="0.35")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # names are placed for this layout
    for axis, (named, lines) in zip(axes, drawn, strict=True):
        name_points(axis, named, lines)
    return figure


def _draw(
    axis: Any, panel: Panel, rows: Sequence[dict[str, Any]]
) -> tuple[list[tuple[str, Point]], list[list[Point]]]:
    """The points with their names, and all lines, in data coordinates."""
    base, *others = rows
    points = [(row["bits_per_weight"], panel.value(row)) for row in others]
    sign = -1 if panel.more_is_better else 1
    is_best = front([(sign * x, sign * y) for x, y in points])
    lines = []
    for (what, error), style in zip(panel.bars, _BAR_STYLES, strict=False):
        errors = [_finite(error(row)) for row in others]
        axis.errorbar(*zip(*points, strict=True), errors, fmt="none", label=what, **style)
        lines += [[(x, y - e), (x, y + e)] for (x, y), e in zip(points, errors, strict=True)]
    for point, best in zip(points, is_best, strict=True):
        axis.plot(*point, "o", color="C0", markersize=6, markerfacecolor="C0" if best else "white")
    stairs = _stairs([p for p, best in zip(points, is_best, strict=True) if best], sign)
    axis.plot(*zip(*stairs, strict=True), color="C0", linewidth=1, alpha=0.5, label=panel.front)
    label = f"base {_name(base)} ({base['bits_per_weight']:.3g} bits): {panel.told(base)}"
    value = panel.value(base)
    axis.axhline(value, color="black", linestyle="--", linewidth=1, label=label)
    values = [y for _, y in points]
    if not panel.more_is_better and max(values) > _LOG_FROM * value:
        ticker = importlib.import_module("matplotlib.ticker")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.margins(0.12)
    axis.grid(color="0.92")
    axis.set_axisbelow(True)
    axis.set_xlabel("bits per weight")
    axis.set_ylabel(panel.label)
    axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(-0.02, 1), frameon=False)
    lines += [stairs, [(axis.get_xlim()[0], value), (axis.get_xlim()[1], value)]]
    return [(_name(row), point) for row, point in zip(others, points, strict=True)], lines


def _stairs(best: Sequence[Point], sign: int) -> list[Point]:
    """The border of the region that these points dominate.

    sign 1: a point holds to its right up to the next one. -1: to its left.
    """
    ordered = sorted(set(best))
    line = ordered[:1]
    for (x0, y0), (x1, y1) in itertools.pairwise(ordered):
        line += [(x1, y0) if sign > 0 else (x0, y1), (x1, y1)]
    return line


def _name(row: dict[str, Any]) -> str:
    """A type, or a file's name; a dollar is escaped, as it would begin a formula."""
    return Path(row["model"]).name.removesuffix(".gguf").replace("$", r"\$")


def _figure(width: float, height: float) -> Any:
    """A matplotlib Figure, in inches, without pyplot's global state."""
    agg = importlib.import_module("matplotlib.backends.backend_agg")
    module = importlib.import_module("matplotlib.figure")
    return agg.FigureCanvas(
        module.Figure(figsize=(width, height), dpi=100, layout="constrained")
    ).figure


def caption(compared: dict[str, Any]) -> str:
    """How the models of `eval compare -o json` were measured."""
    stride = f", stride {compared['stride']}" if "stride" in compared else ""
    return (
        f"{compared['chunks']} chunks of {compared['n_ctx']} tokens ({compared['tokens']} scored, "
        f"method {compared['method']}{stride}), {compared['seconds']:.1f} s; {compared['cpu']}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("compared", type=Path, help="JSON of 'pyflow eval compare -o json'")
    parser.add_argument("chart", type=Path, help="the picture to write, such as front.png")
    given = parser.parse_args(arguments)
    try:
        compared = json.loads(given.compared.read_text())
        figure = draw(compared["models"], caption(compared))
        figure.savefig(given.chart, dpi=150)
    except ImportError:
        parser.error("matplotlib is not installed; run 'pip install matplotlib'")
    except (OSError, ValueError, LookupError) as error:
        parser.error(f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
