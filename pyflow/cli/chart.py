"""Charts, for commands that draw: whether they can, and where the names of points go."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

from pyflow.cli.options import F

Point: TypeAlias = tuple[float, float]

_SIZE = 9
"""Of names, in points."""
_DISTANCES = (6, 12, 20, 28, 38, 50)
"""From a point to its name, in points; from the second on a line leads there."""
_ANGLES = (0, 45, 315, 90, 270, 135, 225, 180)
_MARK, _STEP = 4.0, 3.0
"""Half the width of a point, and of a line the distance between the places that stand for it; in
points."""

_OUTSIDE = 10
"""How much worse it is to leave the axes than to cover something."""
_LEADER = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.5", "shrinkA": 0, "shrinkB": 4}


def option(text: str) -> Callable[[F], F]:
    """--plot FILE; text: what is drawn."""
    return click.option(
        "--plot",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Also draw {text}, with matplotlib.",
    )


def check(target: Path | None) -> None:
    """A usage error, before anything is measured, for a chart that could not be written."""
    if target is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot: matplotlib is not here; run 'pip install matplotlib'")
    if not target.parent.is_dir():
        raise click.UsageError(f"--plot: there is no folder {target.parent}")
    known = sorted(figure(1, 1).canvas.get_supported_filetypes())
    if target.suffix[1:].lower() not in known:
        raise click.UsageError(
            f"--plot: expected a name that ends in one of .{' .'.join(known)}, found {target}"
        )
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise click.UsageError(
            f"--plot: cannot write into {target.parent}: {error.strerror}"
        ) from None


def figure(width: float, height: float) -> Any:
    """A matplotlib Figure, in inches; nothing else in the process knows it."""
    agg = importlib.import_module("matplotlib.backends.backend_agg")
    module = importlib.import_module("matplotlib.figure")
    return agg.FigureCanvas(
        module.Figure(figsize=(width, height), dpi=100, layout="constrained")
    ).figure


def save(drawn: Any, target: Path) -> None:
    """Writes a figure, in half as many pixels again as it is made for."""
    drawn.savefig(target, dpi=1.5 * drawn.dpi)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    @staticmethod
    def around(x: float, y: float, width: float, height: float) -> Box:
        return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    @property
    def middle(self) -> Point:
        return (self.left + self.right) / 2, (self.bottom + self.top) / 2

    def nearest(self, x: float, y: float) -> Point:
        """The point in it that is the nearest to this one."""
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)

    def shared(self, other: Box) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)


def name_points(
    axis: Any, named: Sequence[tuple[str, Point]], lines: Iterable[Sequence[Point]] = ()
) -> list[Any]:
    """Writes names beside their points, off points, lines (all in data) and each other.

    Each takes the nearest place that is free, or the one that covers least. The figure must have
    been drawn, for sizes and limits to be final. Returns the annotations.
    """
    pixels = axis.figure.dpi / 72  # of a point
    space = Box(*axis.bbox.extents.tolist())
    marks = [axis.transData.transform(point).tolist() for _, point in named]
    taken = [Box.around(x, y, 2 * _MARK * pixels, 2 * _MARK * pixels) for x, y in marks]
    for line in lines:
        ends = [space.nearest(*end) for end in axis.transData.transform(line).tolist()]
        taken += (Box.around(x, y, 3, 3) for x, y in _along(ends, _STEP * pixels))
    found = []
    for (name, point), mark in zip(named, marks, strict=True):
        boxes = _places(mark, *_size(axis, name, pixels), pixels)
        box, is_far = _choose(boxes, taken, space)
        taken.append(box)
        (x, y), (x0, y0) = box.middle, mark
        found.append(
            axis.annotate(
                name,
                point,
                xytext=((x - x0) / pixels, (y - y0) / pixels),
                textcoords="offset points",
                fontsize=_SIZE,
                ha="center",
                va="center",
                arrowprops=_LEADER if is_far else None,
            )
        )
    return found


def _size(axis: Any, name: str, pixels: float) -> Point:
    """Width and height of a name, in pixels, with a little room at its sides."""
    text = axis.text(0, 0, name, fontsize=_SIZE)
    extent = text.get_window_extent(axis.figure.canvas.get_renderer())
    text.remove()
    return extent.width + 2 * pixels, extent.height


def _places(mark: Point, width: float, height: float, pixels: float) -> Iterator[tuple[Box, bool]]:
    """Where a name may be, the nearest first, and whether a line must lead there.

    A corner or the middle of an edge is that far from the point.
    """
    for distance, angle in itertools.product(_DISTANCES, _ANGLES):
        x, y = (round(f(math.radians(angle)), 9) for f in (math.cos, math.sin))
        dx = x * distance * pixels + (math.copysign(width / 2, x) if x else 0)
        dy = y * distance * pixels + (math.copysign(height / 2, y) if y else 0)
        box = Box.around(mark[0] + dx, mark[1] + dy, width, height)
        yield box, distance > _DISTANCES[0]


def _choose(
    places: Iterable[tuple[Box, bool]], taken: Sequence[Box], space: Box
) -> tuple[Box, bool]:
    """The first one that covers nothing and lies within, or else the least bad one."""
    best, least = None, math.inf
    for place in places:
        box = place[0]
        outside = box.shared(box) - box.shared(space)
        bad = sum(map(box.shared, taken)) + _OUTSIDE * outside
        if bad < least:
            best, least = place, bad
        if bad < 1:
            break
    assert best is not None
    return best


def _along(ends: Sequence[Point], step: float) -> Iterator[Point]:
    """Points of a line through these, a step apart at most."""
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        n = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / step))
        for i in range(n + 1):
            yield x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n
