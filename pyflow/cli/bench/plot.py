"""Line charts as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#9a6700")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 420, 260, 56, 34, 16, 40


def plot(charts: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], x: str) -> str:
    """Charts side by side: by title, lines by name, as points. x: the name of the axis."""
    parts = [_chart(i * _WIDTH, title, lines, x) for i, (title, lines) in enumerate(charts.items())]
    width = _WIDTH * len(charts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'viewBox="0 0 {width} {_HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _chart(
    left: int, title: str, lines: Mapping[str, Sequence[tuple[float, float]]], x: str
) -> str:
    points = [point for line in lines.values() for point in line]
    most_x = max((px for px, _ in points), default=1.0)
    most_y = _round_up(max((py for _, py in points), default=1.0))
    x0, y0 = left + _LEFT, _HEIGHT - _BOTTOM
    width, height = _WIDTH - _LEFT - _RIGHT, y0 - _TOP

    def place(point: tuple[float, float]) -> str:
        return f"{x0 + width * point[0] / most_x:.1f},{y0 - height * point[1] / most_y:.1f}"

    out = [f'<text x="{x0}" y="16" font-weight="bold">{escape(title)}</text>']
    for i in range(5):
        y = y0 - height * i / 4
        out.append(
            f'<line x1="{x0}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{most_y * i / 4:g}</text>'
        )
    for px in sorted({px for px, _ in points}):
        at = x0 + width * px / most_x
        out.append(f'<text x="{at:.1f}" y="{y0 + 14}" text-anchor="middle">{px:g}</text>')
    out.append(
        f'<text x="{x0 + width / 2:.1f}" y="{y0 + 30}" text-anchor="middle">{escape(x)}</text>'
    )
    for i, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        path = " ".join(place(point) for point in sorted(line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in line:
            cx, cy = place(point).split(",")
            out.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"/>')
        out.append(
            f'<text x="{x0 + 8 + i * 130}" y="{_TOP - 4}" fill="{colour}">{escape(name)}</text>'
        )
    return "".join(out)


def _round_up(value: float) -> float:
    """To 1, 2, 4 or 8 times a power of ten."""
    step = 10.0 ** (len(str(int(max(value, 1)))) - 1)
    return next(step * n for n in (1, 2, 4, 8, 10) if step * n >= value)
