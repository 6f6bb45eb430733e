"""Pipelines on clusters that are not here: every figure and table of docs/pipelines.md.

usage: python bench/cluster/strategies.py --out FOLDER [--nodes 1,2,4,8,15,32,64] [--tokens 256]
           [--seeds 5]
       python bench/cluster/strategies.py --out FOLDER --wall [-m MODEL] [--ranks 8] [--repeats 1]

The first one simulates in virtual time: speed, time to first token, inter-token latency, memory and
utilisation on the clusters of Butler et al., PipeInfer (2024), section V, and what each part of
PipeInfer brings. It depends on no clock: the same numbers come out on every machine. Each
point goes to FOLDER/points.jsonl when it is known, and a run that was stopped goes on from there.
cluster.json, tables.md and the charts are made of all of them at the end.

The second one runs a real model under mpiexec, on ranks that wait as the nodes of cluster C would,
and sets what it measures against the simulation of the same times; see wall.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters import CLUSTERS, PAIRS, Pair
from figures import draw
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from simulate import Texts, ablations, best, choices
from tables import as_markdown
from wall import compare

# The paper's figure 8: eight nodes, and the smaller draft model for each target.
ABLATED = 8, (0, 2, 4)


@dataclass(frozen=True, slots=True)
class Point:
    """What is simulated in one go."""

    kind: str
    cluster: str
    n_nodes: int
    pair: Pair
    texts: Texts

    @property
    def key(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "cluster": self.cluster,
            "nodes": self.n_nodes,
            "pair": self.pair.name,
            "alpha": self.pair.alpha,
            "tokens": self.texts.n_tokens,
            "seeds": self.texts.n_seeds,
        }

    def compute(self) -> dict[str, Any]:
        ways = ablations if self.kind == "ablations" else choices
        cluster = CLUSTERS[self.cluster]
        tried = list(ways(cluster, self.n_nodes, self.pair, self.texts.n_cells))
        return best(self.pair, tried, self.texts)


def points(names: list[str], counts: list[int], texts: Texts) -> Iterator[Point]:
    """All that the figures need; counts: of nodes, in place of the paper's."""
    for name in names:
        cluster = CLUSTERS[name]
        for n in counts or cluster.counts:
            if n <= len(cluster.nodes):
                yield from (Point("nodes", name, n, pair, texts) for pair in PAIRS)
    if "C" in names:
        n, pairs = ABLATED
        yield from (Point("ablations", "C", n, PAIRS[i], texts) for i in pairs)


def simulated(folder: Path, wanted: list[Point]) -> list[dict[str, Any]]:
    """Those of the wanted points that the folder has not are added to it."""
    path = folder / "points.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # Of a line that was being written when somebody stopped this, nothing is kept.
    known = {json.dumps(row["key"]): row for row in map(json.loads, filter(_is_whole, lines))}
    bar = Progress(
        TextColumn("{task.description:48}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with bar, path.open("w") as file:
        task = bar.add_task("", total=len(wanted))
        for row in known.values():
            print(json.dumps(row), file=file, flush=True)
        for point in wanted:
            at = f"{point.cluster} {point.n_nodes}: {point.pair.name}"
            bar.update(task, description=at)
            name = json.dumps(point.key)
            if name not in known:
                known[name] = {"key": point.key, "found": point.compute()}
                print(json.dumps(known[name]), file=file, flush=True)
            bar.advance(task)
    return [known[json.dumps(point.key)] for point in wanted]


def _is_whole(line: str) -> bool:
    return line.endswith("}}}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--clusters", default="C,A,B", help="which of the paper's, e.g. C")
    parser.add_argument("--nodes", default="", help="e.g. 1,2,64; as in the paper by default")
    parser.add_argument("--tokens", type=int, help="of a text: 256, of --wall 64")
    parser.add_argument("--seeds", type=int, default=5, help="texts of each kind")
    parser.add_argument("--wall", action="store_true", help="under mpiexec instead")
    parser.add_argument("-m", "--model", default="smollm2", help="of --wall: name or path")
    parser.add_argument("--ranks", type=int, default=8, help="of --wall: 4 to 8")
    parser.add_argument("--repeats", type=int, default=1, help="of --wall: there and back so often")
    parser.add_argument("--slower", type=float, default=1, help="of --wall: times, by this factor")
    parser.add_argument("--pairs", default="2,0", help="of --wall: numbers of pairs, 0 to 5")
    options = parser.parse_args(arguments)
    try:
        options.nodes = [int(n) for n in options.nodes.split(",") if n]
        options.pairs = [PAIRS[int(i)] for i in options.pairs.split(",")]
    except (ValueError, IndexError):
        parser.error("--nodes, --pairs: expected numbers with commas between them, pairs from 0")
    options.clusters = options.clusters.split(",")
    options.tokens = options.tokens or (64 if options.wall else 256)
    if not set(options.clusters) <= set(CLUSTERS):
        parser.error(f"--clusters: expected some of {', '.join(CLUSTERS)}")
    if min([options.tokens - 1, options.seeds, options.repeats, *options.nodes]) < 1:
        parser.error("--nodes, --seeds and --repeats must be at least 1, --tokens at least 2")
    if not 3 <= options.ranks <= 16 or options.slower <= 0:
        parser.error("--ranks: expected 3 to 16; --slower: more than 0")
    return options


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.wall:
        return compare(options)
    texts = Texts(options.tokens, options.seeds)
    rows = simulated(options.out, list(points(options.clusters, options.nodes, texts)))
    (options.out / "cluster.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = as_markdown(rows)
    (options.out / "tables.md").write_text(table + "\n")
    draw(rows, options.out)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
