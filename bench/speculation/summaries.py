"""Summaries of paired samples: numbers with their uncertainty, and Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paired import Sample

from pyflow.speculate import SpeculationStats
from pyflow.text import counted, markdown_table

ALL = "all"
_RESAMPLES = 10_000
_CHUNK = 1_000
_CTAR = range(1, 5)
_HEAD = ["task", "method", "n", "tokens/step", "rows/step", "drafted", "accepted", "rate"]
_HEAD += ["CTAR 1-4", "speed-up, median", "geometric mean", "t/s", "plain t/s", "prompt"]


def interval(
    values: Sequence[float], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a statistic over the last axis: percentiles of its values for
    10,000 resamples, the same ones in every run."""
    given = np.asarray(values, np.float64)
    random = np.random.default_rng(1)
    found = [
        statistic(given[random.integers(0, given.size, (_CHUNK, given.size))])
        for _ in range(_RESAMPLES // _CHUNK)
    ]
    low, high = np.percentile(np.concatenate(found), [2.5, 97.5])
    return float(low), float(high)


def median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.median(values, axis=-1))


def geometric_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(np.log(values).mean(axis=-1)))


def summaries(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One for every setting, task and method, and of all tasks of a setting together."""
    out = []
    for setting in dict.fromkeys(s.setting for s in samples):
        of_setting = [s for s in samples if s.setting == setting]
        tasks = list(dict.fromkeys(s.group.task for s in of_setting))
        for task in [*tasks, ALL]:
            of_task = [s for s in of_setting if task in (s.group.task, ALL)]
            for method in dict.fromkeys(s.method for s in of_task):
                found = [s for s in of_task if s.method == method]
                out.append(
                    {
                        "batch": setting.n_batch,
                        "prompt_len": setting.prompt_len,
                        "task": task,
                        "method": method,
                        **_summary(found),
                    }
                )
    return out


def _summary(samples: Sequence[Sample]) -> dict[str, Any]:
    ratios = [s.ratio for s in samples if s.ratio is not None]
    parts = [s.run.stats for s in samples if s.run.stats is not None]
    stats = SpeculationStats.total(parts)
    decode_s = 1e-3 * sum(s.run.decode_ms for s in samples)
    plain_s = 1e-3 * sum(s.plain.decode_ms for s in samples)
    n_tokens = sum(s.run.decode_n for s in samples)
    prompts = np.array([s.run.prompt_ms / s.plain.prompt_ms for s in samples])
    of_ratios: dict[str, Any] = dict.fromkeys(
        ["speedup_median", "speedup_median_95", "speedup_geomean", "speedup_geomean_95"]
    )
    if ratios:
        values = np.array(ratios)
        of_ratios = {
            "speedup_median": float(median(values)),
            "speedup_median_95": interval(ratios, median),
            "speedup_geomean": float(geometric_mean(values)),
            "speedup_geomean_95": interval(ratios, geometric_mean),
        }
    return {
        "n": len(ratios),
        "n_questions": sum(len(s.group.ids) for s in samples),
        **(stats.as_dict() if parts else {}),
        "rows_per_step": _rows_per_step(stats) if parts else None,
        **of_ratios,
        "tokens_per_second": n_tokens / decode_s if decode_s else None,
        "plain_tokens_per_second": n_tokens / plain_s if plain_s else None,
        "prompt_ratio": float(geometric_mean(prompts)),
    }


def _rows_per_step(stats: SpeculationStats) -> float:
    """Of one sequence, its root included."""
    return 1 + (stats.drafted + stats.explored) / stats.steps if stats.steps else 0.0


def as_markdown(run: dict[str, Any]) -> str:
    """What was run, and a table for every setting."""
    parts = [
        f"{run['model']}, {run['cpu']} ({run['backend']}), {counted(run['n_threads'], 'thread')}, "
        f"load average before the run {run['load_average_before']:.1f}",
        f"`{run['command']}`",
    ]
    for batch, limit in dict.fromkeys((r["batch"], r["prompt_len"]) for r in run["summaries"]):
        rows = [r for r in run["summaries"] if (r["batch"], r["prompt_len"]) == (batch, limit)]
        together = "one at a time" if batch == 1 else f"{batch} at a time"
        parts.append(f"Prompts of at most {limit} tokens, {together}:")
        parts.append(markdown_table(_HEAD, [_cells(r) for r in rows], left={"task", "method"}))
    return "\n\n".join(parts)


def _cells(r: dict[str, Any]) -> list[str]:
    drafts = [""] * 6
    if r["rows_per_step"] is not None:
        drafts = [
            f"{r['tokens_per_step']:.2f}",
            f"{r['rows_per_step']:.1f}",
            str(r["drafted"]),
            str(r["accepted"]),
            f"{r['acceptance_rate']:.0%}" if r["drafted"] else "",
            " ".join(f"{r['ctar'][w - 1]:.2f}" for w in _CTAR),
        ]
    return [
        r["task"],
        r["method"],
        str(r["n"]),
        *drafts,
        _with_interval(r["speedup_median"], r["speedup_median_95"]),
        _with_interval(r["speedup_geomean"], r["speedup_geomean_95"]),
        _rate(r["tokens_per_second"]),
        _rate(r["plain_tokens_per_second"]),
        f"{r['prompt_ratio']:.2f}",
    ]


def _with_interval(value: float | None, ends: tuple[float, float] | None) -> str:
    if value is None or ends is None:
        return ""
    return f"{value:.2f} ({ends[0]:.2f}..{ends[1]:.2f})"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
