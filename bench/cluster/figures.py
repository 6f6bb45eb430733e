"""The charts of a simulation: those of the paper's figures 4 to 8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# Names of strategies, what the charts call them, and how they look.
STRATEGIES = {
    "iterative": ("iterative", "C7", "o"),
    "speculative": ("speculative", "C1", "s"),
    "pipeinfer": ("PipeInfer, chains kept", "C0", "D"),
    "pipeinfer, redrafting": ("PipeInfer, as published", "C2", "^"),
}


def draw(rows: list[Row], folder: Path) -> None:
    """speed, first_token, latency, memory, utilisation, constrained and ablations, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    found = [row for row in rows if row["key"]["kind"] == "nodes"]
    large = [row for row in found if row["key"]["cluster"] == "C"]
    if large:
        _lines(large, folder / "speed.png", "tokens/s", lambda one: one["tokens_per_s"])
        _lines(
            large,
            folder / "first_token.png",
            "s to first token after the prompt (dashed: with it)",
            lambda one: one["ttft_s"],
            lambda one: one["ttft_s"] + one["prompt_s"],
        )
        _lines(
            large,
            folder / "latency.png",
            "s between tokens, mean (dashed: 95th percentile)",
            lambda one: one["gap_s"],
            lambda one: one["gap_p95_s"],
        )
        _lines(
            large,
            folder / "memory.png",
            "GB per node, mean (dashed: the fullest)",
            lambda one: one["nbytes_mean"] / 1e9,
            lambda one: one["nbytes_max"] / 1e9,
        )
        _lines(
            large,
            folder / "speed_per_memory.png",
            "tokens/s per GB of a node",
            lambda one: one["tokens_per_s"] / one["nbytes_mean"] * 1e9,
        )
        _lines(
            large,
            folder / "utilisation.png",
            "busy part of the time of stages",
            lambda one: one["utilisation"],
        )
    small = [row for row in found if row["key"]["cluster"] != "C"]
    if small:
        _groups(small, folder / "constrained.png", _place, list(STRATEGIES), "tokens/s")
    if ablated := [row for row in rows if row["key"]["kind"] == "ablations"]:
        names = list(ablated[0]["found"])
        _groups(ablated, folder / "ablations.png", _pair, names, "tokens/s")


def _pairs(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(map(_pair, rows)))


def _pair(row: Row) -> str:
    return str(row["key"]["pair"])


def _place(row: Row) -> str:
    pair = _pair(row).replace(" + ", "\n")
    return f"{pair}\n{row['key']['cluster']}{row['key']['nodes']}"


def _lines(
    rows: list[Row],
    target: Path,
    label: str,
    value: Callable[[Row], float],
    dashed: Callable[[Row], float] | None = None,
) -> None:
    """A panel for each pair: a value against the number of nodes, by strategy."""
    from matplotlib import pyplot

    pairs = _pairs(rows)
    n_columns = min(3, len(pairs))
    n_rows = -(-len(pairs) // n_columns)
    figure, axes = pyplot.subplots(
        n_rows, n_columns, figsize=(3.6 * n_columns, 2.9 * n_rows), squeeze=False, sharex=True
    )
    for axis, pair in zip(axes.flat, pairs, strict=False):
        some = sorted(
            (r for r in rows if r["key"]["pair"] == pair), key=lambda r: r["key"]["nodes"]
        )
        for name, (words, colour, marker) in STRATEGIES.items():
            known = [row for row in some if name in row["found"]]
            at = [row["key"]["nodes"] for row in known]
            ways = [row["found"][name] for row in known]
            shape = {"color": colour, "marker": marker, "markersize": 4}
            axis.plot(at, list(map(value, ways)), label=words, **shape)
            if dashed:
                axis.plot(at, list(map(dashed, ways)), linestyle=":", **shape)
        axis.set_xscale("log", base=2)
        counts = sorted({row["key"]["nodes"] for row in some})
        axis.set_xticks(counts, [str(n) for n in counts])
        axis.set_ylim(bottom=0)
        axis.set_title(f"{pair} ({some[0]['key']['alpha']:.2f})", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=7)
    figure.supxlabel("nodes of cluster C, simulated", fontsize=9)
    figure.supylabel(label, fontsize=9)
    figure.tight_layout()
    figure.savefig(target, dpi=75)
    pyplot.close(figure)


def _groups(
    rows: list[Row], target: Path, title: Callable[[Row], str], names: list[str], label: str
) -> None:
    """Bars: a group for each row, a bar for each name."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(max(7, 0.75 * len(rows)), 3.8))
    width = 0.85 / len(names)
    for i, name in enumerate(names):
        at = [j + (i + 0.5) * width - 0.425 for j in range(len(rows))]
        values = [row["found"].get(name, {}).get("tokens_per_s", 0.0) for row in rows]
        words, colour, _ = STRATEGIES.get(name, (name, f"C{i % 5 + 3}", ""))
        hatch = "//" if name.startswith("pipeinfer, redrafting") else ""
        axis.bar(at, values, width, label=words, color=colour, hatch=hatch)
    axis.set_xticks(range(len(rows)), [title(row) for row in rows], fontsize=6)
    axis.set_ylabel(label)
    axis.legend(fontsize=6, ncols=2)
    figure.tight_layout()
    figure.savefig(target, dpi=75)
    pyplot.close(figure)
