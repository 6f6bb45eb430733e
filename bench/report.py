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
    peers = [side for side in run["sides"] if side != "pyflow"]
    ratios = [f"pyflow / {peer}" for peer in peers] if "pyflow" in run["sides"] else []
    header = ["model", "threads", "test", *run["sides"], *ratios, "read limit", "of limit"]
    lines += ["", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in run["rows"]:
        best = row["best"]
        cells = [row["model"], str(row["n_threads"]), row["test"]]
        cells += [spread(best[side]) if side in best else "" for side in run["sides"]]
        if ratios:
            cells += [f"{ratio(best, peer)[1]:.2f}" if peer in best else "" for peer in peers]
        cells += limit(row)
        lines.append("| " + " | ".join(cells) + " |")
    refusals = [
        f"- {row['model']}: {side} cannot run it: {' '.join(words.split())}"
        for row in run["rows"]
        for side, words in row["refused"].items()
    ]
    if refusals:
        lines += ["", *dict.fromkeys(refusals)]
    return "\n".join(lines)


def spread(summary: dict[str, Any]) -> str:
    text = f"{number(summary['median'])} ({number(summary['min'])}..{number(summary['max'])})"
    return text if summary["variant"] == "default" else f"{text} {summary['variant']}"


def ratio(best: dict[str, Any], peer: str) -> tuple[float, float, float]:
    """pyflow over the peer's best variant: the least, of the medians, and the most.

    The extremes set the slowest sample of one side against the fastest of the other.
    """
    ours, theirs = best["pyflow"], best[peer]
    return (
        ours["min"] / theirs["max"],
        ours["median"] / theirs["median"],
        ours["max"] / theirs["min"],
    )


def limit(row: dict[str, Any]) -> list[str]:
    """Tokens/s that plain reads of pyflow's weights would allow, and the part that it reached."""
    rate = row["read_bytes_per_second"]
    if rate is None:
        return ["", ""]
    bound = rate / row["bytes_per_token"]
    return [number(bound), f"{row['best']['pyflow']['median'] / bound:.0%}"]


def number(value: float) -> str:
    """Three significant digits or none after the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def draw(run: dict[str, Any], target: Path) -> None:
    """Bars of pyflow's speed over each peer's, with their spread; one chart for each test."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    peers = [side for side in run["sides"] if side != "pyflow"]
    tests = list(dict.fromkeys(row["test"] for row in run["rows"]))
    width = 0.8 / len(peers)
    figure, axes = pyplot.subplots(1, len(tests), figsize=(6 * len(tests), 4), squeeze=False)
    for axis, test in zip(axes[0], tests, strict=True):
        rows = [row for row in run["rows"] if row["test"] == test]
        for i, peer in enumerate(peers):
            places = [
                (j + (i + 0.5) * width - 0.4, ratio(row["best"], peer))
                for j, row in enumerate(rows)
                if peer in row["best"]
            ]
            middles = [middle for _, (_, middle, _) in places]
            spans = [
                [middle - least for _, (least, middle, _) in places],
                [most - middle for _, (_, middle, most) in places],
            ]
            at = [place for place, _ in places]
            axis.bar(at, middles, width, yerr=spans, capsize=2, label=f"pyflow / {peer}")
            for place, middle in zip(at, middles, strict=True):
                axis.text(place, 0, f"{middle:.2f}", ha="center", va="bottom", fontsize=8)
        labels = [f"{row['model']}\n{row['n_threads']} thr." for row in rows]
        axis.set_xticks(range(len(rows)), labels, fontsize=8)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_ylabel("ratio of tokens/s")
        axis.set_title(test)
        axis.legend()
    figure.suptitle(run["cpu"], fontsize=9)
    figure.tight_layout()
    figure.savefig(target, dpi=150)
    pyplot.close(figure)
