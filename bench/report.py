"""The words and the chart of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def as_markdown(run: dict[str, Any]) -> str:
    """A table with one line for each model, thread count and test; tokens/s, medians (min..max)."""
    lines = [
        f"{run['cpu']}, {run['n_cpus']} CPUs, load average before the run "
        f"{run['load_average_before']:.1f}; {run['repeats']} repeats.",
        f"`{run['command']}`",
        "",
    ]
    for side in run["sides"].values():
        lines.append(f"- {side['name']}: {side['system_info']}")
    header = ["model", "threads", "test", *run["sides"], "ratio", "read limit", "of limit"]
    lines += ["", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in run["rows"]:
        best = row["best"]
        cells = [row["model"], str(row["n_threads"]), row["test"]]
        cells += [spread(best[side]) for side in run["sides"]]
        cells.append(ratio(best))
        cells += limit(row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(summary: dict[str, Any]) -> str:
    text = f"{number(summary['median'])} ({number(summary['min'])}..{number(summary['max'])})"
    return text if summary["variant"] == "default" else f"{text} {summary['variant']}"


def ratio(best: dict[str, Any]) -> str:
    """pyflow's median over the peer's best variant's."""
    if len(best) < 2:
        return ""
    return f"{best['pyflow']['median'] / best['llama.cpp']['median']:.2f}"


def limit(row: dict[str, Any]) -> list[str]:
    """Tokens/s that plain reads of the weights would allow, and the part of it that was reached."""
    rate = row["read_bytes_per_second"]
    if rate is None:
        return ["", ""]
    bound = rate / row["bytes_per_token"]
    best = max(summary["median"] for summary in row["best"].values())
    first = row["best"].get("pyflow", {"median": best})["median"]
    return [number(bound), f"{first / bound:.0%}"]


def number(value: float) -> str:
    """Three significant digits or none after the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def draw(run: dict[str, Any], target: Path) -> None:
    """Bars of the medians with their spread, one pair for each row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    tests = list(dict.fromkeys(row["test"].split()[0] for row in run["rows"]))
    figure, axes = pyplot.subplots(1, len(tests), figsize=(6 * len(tests), 4), squeeze=False)
    for axis, test in zip(axes[0], tests, strict=True):
        rows = [row for row in run["rows"] if row["test"].startswith(test)]
        width = 0.8 / len(run["sides"])
        for i, side in enumerate(run["sides"]):
            summaries = [row["best"][side] for row in rows]
            middles = [s["median"] for s in summaries]
            spans = [
                [s["median"] - s["min"] for s in summaries],
                [s["max"] - s["median"] for s in summaries],
            ]
            places = [j + i * width for j in range(len(rows))]
            axis.bar(places, middles, width, yerr=spans, capsize=2, label=side)
        labels = [f"{row['model']}\n{row['n_threads']} thr." for row in rows]
        axis.set_xticks([j + width / 2 for j in range(len(rows))], labels, fontsize=8)
        axis.set_ylabel("tokens/s")
        axis.set_yscale("log")
        axis.set_title(rows[0]["test"])
        axis.legend()
    figure.suptitle(run["cpu"], fontsize=9)
    figure.tight_layout()
    figure.savefig(target, dpi=150)
