"""The chart of a measurement: tokens per step, and speed-ups by task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from summaries import ALL

from pyflow.text import counted


def draw(run: dict[str, Any], target: Path) -> None:
    """Draws tokens per step over the rows of a step, with a line through Lookahead's sizes, and
    the speed-ups of every task. Only the first setting is drawn."""
    first = (run["summaries"][0]["batch"], run["summaries"][0]["prompt_len"])
    rows = [r for r in run["summaries"] if (r["batch"], r["prompt_len"]) == first]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5), dpi=100, layout="constrained")
    steps, speeds = figure.subplots(1, 2)
    _draw_steps(steps, [r for r in rows if r["task"] == ALL and r["rows_per_step"]])
    _draw_speeds(speeds, [r for r in rows if r["speedup_median"] is not None])
    figure.suptitle(
        f"{run['model']}, {run['cpu']}, {counted(run['n_threads'], 'thread')}", fontsize=9
    )
    figure.savefig(target, dpi=150)


def _draw_steps(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    for r in rows:
        axis.plot(r["rows_per_step"], r["tokens_per_step"], "o")
        axis.annotate(r["method"], (r["rows_per_step"], r["tokens_per_step"]), fontsize=7)
    if fit := line(rows):
        slope, base, at = fit
        ends = np.array([min(at), max(at)])
        label = f"{base:.2f} + {slope:.3f} log2(rows)"
        axis.plot(2**ends, base + slope * ends, "--", color="black", linewidth=0.8, label=label)
        axis.legend(fontsize=7)
    axis.set_xscale("log", base=2)
    axis.margins(x=0.2)
    axis.set_xlabel("rows of a step")
    axis.set_ylabel("tokens of a step")


def line(rows: Sequence[dict[str, Any]]) -> tuple[float, float, list[float]] | None:
    """(slope, base, log2(rows)) of tokens per step = slope x log2(rows) + base.

    By least squares over the Lookaheads that leave nothing out; None for fewer than two of them.
    """
    whole = [r for r in rows if re.fullmatch(r"lookahead(:\d+/\d+/\d+)?", r["method"])]
    at = [float(np.log2(r["rows_per_step"])) for r in whole]
    if len(set(at)) < 2:
        return None
    slope, base = np.polyfit(at, [r["tokens_per_step"] for r in whole], 1)
    return float(slope), float(base), at


def _draw_speeds(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Medians with their intervals."""
    methods = list(dict.fromkeys(r["method"] for r in rows))
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    width = 0.8 / max(1, len(methods))
    for i, method in enumerate(methods):
        of_method = [r for r in rows if r["method"] == method]
        at = [tasks.index(r["task"]) + (i + 0.5) * width - 0.4 for r in of_method]
        middles = [r["speedup_median"] for r in of_method]
        # The interval of an even number of samples may lie beside the median: no negative bars.
        spans = [
            [max(0.0, r["speedup_median"] - r["speedup_median_95"][0]) for r in of_method],
            [max(0.0, r["speedup_median_95"][1] - r["speedup_median"]) for r in of_method],
        ]
        axis.bar(at, middles, width, yerr=spans, capsize=2, label=method)
    axis.set_xticks(range(len(tasks)), tasks, fontsize=7, rotation=20)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_ylabel("times plain decoding, median")
    axis.legend(fontsize=7)
