"""Where the names of a chart's points go: beside them, covering nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Point: TypeAlias = tuple[float, float]

_SIZE = 9
"""The font size of names, in points."""
_DISTANCES = (6, 12, 20, 28, 38, 50)
"""From a point to its name, in points; from the second on a line leads to the name."""
_ANGLES = (0, 45, 315, 90, 270, 135, 225, 180)
_MARK, _STEP = 4.0, 3.0
"""Half the width of a point, and the distance between samples of a line, in points."""

_OUTSIDE = 10
"""How much worse a pixel outside of the axes is than a covered one."""
_LEADER = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.5", "shrinkA": 0, "shrinkB": 4}


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
        """The nearest point inside."""
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)

    def shared(self, other: Box) -> float:
        """The area of the intersection."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)


def name_points(
    axis: Any, named: Sequence[tuple[str, Point]], lines: Iterable[Sequence[Point]] = ()
) -> list[Any]:
    """Annotates points with their names, off points, lines (in data coordinates) and each other.

    Each takes the nearest free place, or the one that covers least. Draw the figure first, so that
    sizes and limits are final. Returns the annotations.
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
    """Width and height of a name in pixels, with a margin at its sides."""
    text = axis.text(0, 0, name, fontsize=_SIZE)
    extent = text.get_window_extent(axis.figure.canvas.get_renderer())
    text.remove()
    return extent.width + 2 * pixels, extent.height


def _places(mark: Point, width: float, height: float, pixels: float) -> Iterator[tuple[Box, bool]]:
    """Places for a name, the nearest first, and whether a line must lead there.

    The distance is from the point to a corner or to the middle of an edge.
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
    """The first place inside that covers nothing, or else the least bad one."""
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
    """Points of the line through these ends, at most a step apart."""
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        n = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / step))
        for i in range(n + 1):
            yield x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n
