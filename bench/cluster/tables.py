"""The tables of a simulation, as docs/pipelines.md shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from simulate import ABLATIONS, FEWEST, POLICIES

Row = dict[str, Any]


def as_markdown(rows: list[Row]) -> str:
    """Speeds by cluster, then ablations, then what the paper says beside what is found here."""
    found = [row for row in rows if row["key"]["kind"] == "nodes"]
    parts = [_speeds(found), _memory(found)]
    if uneven := [row for row in found if f"iterative{FEWEST}" in row["found"]]:
        parts.append(_fewest(uneven))
    if ablated := [row for row in rows if row["key"]["kind"] == "ablations"]:
        parts.append(_ablations(ablated))
    return "\n\n".join([*parts, _table(("paper", "there", "here"), claims(rows))])


def fastest(found: dict[str, Row]) -> Row:
    """PipeInfer by the better one of its policies."""
    return max((found[name] for name in POLICIES), key=lambda one: float(one["tokens_per_s"]))


def ratio(row: Row, base: str, what: str = "tokens_per_s") -> float:
    """PipeInfer's over that of another strategy."""
    return float(fastest(row["found"])[what] / row["found"][base][what])


def ceiling(row: Row) -> float:
    """Tokens/s that chains of guesses come to at most, however many runs are on their way.

    What comes in the place of a wrong guess is known when a run has passed all stages, and no
    sooner does the next chain set out: of all tokens, 1 - accepted take the time T of a token
    alone. Of the others, each comes at best as long after the one before as a guess takes.
    """
    best = fastest(row["found"])
    rate = best["accepted"]
    return float(1 / ((1 - rate) * best["ttft_s"] + rate * best["draft_s"]))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _speeds(rows: list[Row]) -> str:
    head = (
        *("cluster", "pair (accepted)", "nodes", "iterative", "speculative (draft)"),
        *("PipeInfer (draft, flight)", "redrafting", "/ speculative", "at most", "/ iterative"),
        *("first token / iterative", "with prompt"),
    )

    def line(row: Row) -> Iterator[str]:
        key, found = row["key"], row["found"]
        base, guess = found["iterative"], found["speculative"]
        yield from (key["cluster"], f"{key['pair']} ({key['alpha']:.2f})", str(key["nodes"]))
        yield from (_two(base), f"{_two(guess)} ({guess['n_draft']})")
        if key["nodes"] == 1:
            yield from [""] * 7
            return
        pipe, again = (found[name] for name in POLICIES)
        yield f"{_two(pipe)} ({pipe['n_draft']}, {pipe['n_flight']})"
        yield _two(again)
        yield f"{ratio(row, 'speculative'):.2f}"
        yield f"{ceiling(row) / guess['tokens_per_s']:.2f}"
        yield f"{ratio(row, 'iterative'):.2f}"
        yield f"{ratio(row, 'iterative', 'ttft_s'):.2f}"
        best = fastest(found)
        yield f"{(best['prompt_s'] + best['ttft_s']) / (base['prompt_s'] + base['ttft_s']):.2f}"

    return _table(head, map(line, rows))


def _fewest(rows: list[Row]) -> str:
    """All of a cluster's machines against the one or the few on which a lone run is fastest."""
    head = ("cluster", "pair", "machines", "iterative", "speculative", "PipeInfer on all", "ratio")

    def line(row: Row) -> Iterator[str]:
        base, guess = (row["found"][f"{name}{FEWEST}"] for name in ("iterative", "speculative"))
        best = fastest(row["found"])
        yield from (row["key"]["cluster"], row["key"]["pair"], str(len(base["layers"])))
        yield from (_two(base), _two(guess), _two(best))
        yield f"{best['tokens_per_s'] / max(base['tokens_per_s'], guess['tokens_per_s']):.2f}"

    return _table(head, map(line, rows))


def _memory(rows: list[Row]) -> str:
    head = (
        "cluster",
        "pair",
        "nodes",
        "GB per node, mean (most)",
        "tokens/s per GB",
        "utilisation",
    )

    def three(row: Row, text: str, *names: str) -> str:
        found = row["found"]
        ways = (found["iterative"], found["speculative"], fastest(found))
        return " · ".join(text.format(*(way[name] for name in names)) for way in ways)

    def line(row: Row) -> Iterator[str]:
        yield from (row["key"]["cluster"], row["key"]["pair"], str(row["key"]["nodes"]))
        scaled = {
            name: way | {n: way[n] / 1e9 for n in ("nbytes_mean", "nbytes_max")}
            for name, way in row["found"].items()
        }
        for way in scaled.values():
            way["per_gb"] = way["tokens_per_s"] / way["nbytes_mean"]
        yield three(row | {"found": scaled}, "{:.2f} ({:.2f})", "nbytes_mean", "nbytes_max")
        yield three(row | {"found": scaled}, "{:.2f}", "per_gb")
        yield three(row, "{:.0%}", "utilisation")

    return "Iterative · speculative · PipeInfer:\n\n" + _table(
        head, (line(row) for row in rows if row["key"]["nodes"] > 1)
    )


def _ablations(rows: list[Row]) -> str:
    head = ("pair", "policy", "whole", *ABLATIONS)

    def line(row: Row, policy: str) -> Iterator[str]:
        whole = row["found"][policy]
        yield from (row["key"]["pair"], policy, _two(whole))
        for name in ABLATIONS:
            part = row["found"][f"{policy}, {name}"]
            yield f"{_two(part)} ({part['tokens_per_s'] / whole['tokens_per_s']:.2f})"

    return _table(head, (line(row, policy) for row in rows for policy in POLICIES))


def claims(rows: list[Row]) -> list[list[str]]:
    """What the paper says in numbers or trends, and the same of these rows."""
    many = [r for r in rows if r["key"]["kind"] == "nodes" and r["key"]["nodes"] >= 8]
    out = []
    for name, there in (("C", "1.5 to 2.15"), ("A", "the greatest of all"), ("B", "as A")):
        some = [ratio(r, "speculative") for r in many if r["key"]["cluster"] == name]
        if some:
            here = f"{min(some):.2f} to {max(some):.2f}"
            out.append([f"over speculative, 8 or more nodes, {name}", there, here])
    for pair, there in (("Tiny", "up to 1.7, well aligned"), ("XWin-7B", "up to 2.15, poorly")):
        some = [ratio(r, "speculative") for r in many if pair in r["key"]["pair"]]
        if some:
            out.append([f"over speculative, {pair}", there, f"up to {max(some):.2f}"])
    if many:
        rest = [ratio(r, "iterative") for r in many]
        out.append(["over iterative", "near-zero slowdown", f"{min(rest):.2f} to {max(rest):.2f}"])
        rest = [ratio(r, "iterative", "ttft_s") for r in many]
        out.append(["first token", "near parity", f"{min(rest):.2f} to {max(rest):.2f}"])
        rest = [ratio(r, "speculative", "utilisation") for r in many]
        out.append(["utilisation", "doubled", f"{min(rest):.1f} to {max(rest):.1f} times"])
        rest = [ratio(r, "speculative", "nbytes_mean") for r in many]
        here = f"{min(rest):.2f} to {max(rest):.2f}"
        out.append(["memory per node over speculative", "equal", here])
    for row in rows:
        if row["key"]["kind"] == "ablations":
            found, name = row["found"], "continuous speculation"
            gains = [
                found[p]["tokens_per_s"] / found[f"{p}, no {name}"]["tokens_per_s"]
                for p in POLICIES
            ]
            here = " and ".join(f"{gain:.2f}" for gain in gains)
            out.append([f"{name}, {row['key']['pair']}", "up to 1.5", here])
    return out


def _two(one: Row) -> str:
    return f"{one['tokens_per_s']:.2f}"
