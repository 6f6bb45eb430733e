"""A real model on ranks that are as slow as the nodes of a cluster, beside the simulation of it.

Each rank computes its share of the model's layers with one thread, and then waits until a node of
cluster C would have computed its share of a model of the paper: a stage of eight takes 23 to 35 ms
for a row. Messages, cells, cancellations and tokens are real. Drafts come from a thread of
rank 0 that knows the text, is right as often as the paper says, and takes the time of the
pair's draft model for each guess; the simulation's drafter is right at the same positions.

The strategies take turns, there and back. What counts is the ratio of their speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from clusters import CLUSTERS, PAIRS, Layout, Pair, even
from simulate import simulate

from pyflow import _core, catalogue, load
from pyflow.cluster.planning.predict import candidates
from pyflow.cluster.run.strategy import Strategy
from pyflow.errors import PyflowError

TEXT = (
    "Once upon a time, in a village between two rivers, there lived an old clockmaker who had not "
    "sold a single clock for seven years. Every morning he"
)
AGREE = 0.1
_START_S = 60  # for ranks to import, to load and to leave, in each turn


def places(n_ranks: int, pair: Pair, slower: float, *, apart: bool) -> Layout:
    """A node of cluster C for each rank. apart: the first one only drafts."""
    cluster = CLUSTERS["C"]
    node = cluster.nodes[0].slower(slower)
    return even((node,) * (n_ranks - apart), pair, cluster.link, node if apart else None)


@dataclass(frozen=True, slots=True)
class Setting:
    """What both sides write, and on what."""

    pair: Pair
    n_ranks: int
    n_prompt: int
    n_tokens: int
    slower: float

    def simulated(self, strategy: Strategy) -> float:
        """Tokens per second."""
        layout = places(self.n_ranks, self.pair, self.slower, apart=is_apart(strategy))
        trace, _ = simulate(self.pair, layout, strategy, self.n_tokens, 0, n_prompt=self.n_prompt)
        return trace.tokens_per_s

    def best(self) -> dict[str, tuple[Strategy, float]]:
        """By name: a strategy with its best numbers, and what the simulation says of it."""
        tried: dict[str, list[Strategy]] = {}
        for name, strategy in candidates(self.n_ranks):
            tried.setdefault(name.partition(",")[0], []).append(strategy)
        return {
            name: max(((s, self.simulated(s)) for s in some), key=itemgetter(1))
            for name, some in tried.items()
        }


def is_apart(strategy: Strategy) -> bool:
    """Whether a node does nothing but draft: where others compute meanwhile."""
    return bool(strategy.n_draft) and not strategy.waits


def find_mpiexec() -> str:
    """The one of the MPI that mpi4py finds."""
    beside = Path(sys.executable).parent
    if (found := shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")) is None:
        raise PyflowError("mpiexec is missing: pip install 'pyflow-llm[cluster]'")
    return found


def run(task: dict[str, Any], n_ranks: int, limit_s: float) -> list[dict[str, Any]]:
    """What each rank has left; PyflowError where they fail or take longer than limit_s."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.json"
        path.write_text(json.dumps(task))
        rank = Path(__file__).with_name("rank.py")
        paths = [str(rank.parent), *filter(None, [os.getenv("PYTHONPATH")])]
        command = [find_mpiexec(), "-n", str(n_ranks), sys.executable, "-m", "mpi4py", str(rank)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        with subprocess.Popen([*command, str(path)], env=environment) as process:
            try:
                status = process.wait(limit_s)
            except BaseException as error:
                process.terminate()  # mpiexec then ends its ranks
                if isinstance(error, subprocess.TimeoutExpired):
                    raise PyflowError(f"the ranks did not end within {limit_s:.0f} s") from None
                raise
        if status:
            raise PyflowError(f"mpiexec ended with {status}")
        left = [Path(folder) / f"rank{i}.json" for i in range(n_ranks)]
        return [json.loads(one.read_text()) for one in left]


def measure(
    setting: Setting, model: str, prompt: list[int], repeats: int
) -> tuple[list[dict[str, Any]], str]:
    """A row for each strategy, and what is to be said of the ranks' computing."""
    path = catalogue.resolve(model).resolve()
    chosen = setting.best()
    with load(path, n_threads=1) as opened:
        n_layers, n_vocab = opened.spec.n_layers, opened.spec.n_vocab
    turns = [
        {"name": name, "strategy": asdict(strategy), "apart": is_apart(strategy)}
        for name, (strategy, _) in chosen.items()
    ]
    task = {
        "model": str(path),
        "n_layers": n_layers,
        "n_vocab": n_vocab,
        "prompt": prompt,
        "n_tokens": setting.n_tokens,
        "pair": PAIRS.index(setting.pair),
        "slower": setting.slower,
        "turns": (turns + turns[::-1]) * repeats,
    }
    each_s = sum(setting.n_tokens / speed for _, speed in chosen.values())
    left = run(task, setting.n_ranks, 2 * repeats * (2 * each_s + len(turns) * _START_S))
    late = [one for rank in left for one in rank["late"]]
    n_late, worst = sum(1 for one in late if one), max(late, default=0)
    said = (
        f"{n_late} of {len(late)} runs took a stage longer than its time, by up to "
        f"{worst * 1e3:.0f} ms"
    )
    rows = []
    for name, (strategy, simulated) in chosen.items():
        traces = [t["times"] for t in left[0]["turns"] if t["name"] == name]
        speeds = [(len(times) - 1) / (times[-1] - times[0]) for times in traces]
        rows.append(
            {
                "name": name,
                "n_draft": strategy.n_draft,
                "n_flight": strategy.n_flight,
                "redrafts": strategy.redrafts,
                "simulated": simulated,
                "measured": statistics.median(speeds),
                "samples": speeds,
                "ttft_s": statistics.median(t[1] - t[0] for t in traces),
            }
        )
    return rows, said


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """PipeInfer over each other strategy, simulated and measured, and by how much they differ."""
    *others, pipe = rows
    out = []
    for other in others:
        simulated = pipe["simulated"] / other["simulated"]
        measured = pipe["measured"] / other["measured"]
        off = measured / simulated - 1
        out.append(
            {"over": other["name"], "simulated": simulated, "measured": measured, "off": off}
        )
    return out


def compare(options: argparse.Namespace) -> int:
    """Writes FOLDER/wall.json, and prints a table; 1 where the two sides do not agree."""
    with load(catalogue.resolve(options.model), n_threads=1) as model:
        prompt = model.tokenizer.encode(TEXT)
    found, agreed = [], True
    print("| pair | strategy | simulated | measured (all) |\n|---|---|---|---|")
    for pair in options.pairs:
        setting = Setting(pair, options.ranks, len(prompt), options.tokens, options.slower)
        rows, said = measure(setting, options.model, prompt, options.repeats)
        ratios = judge(rows)
        found.append({"pair": pair.name, "alpha": pair.alpha, "rows": rows, "ratios": ratios})
        found[-1] |= {"n_ranks": options.ranks, "late": said}
        for row in rows:
            samples = ", ".join(f"{one:.2f}" for one in row["samples"])
            numbers = f" ({row['n_draft']}, {row['n_flight']})" if row["n_draft"] else ""
            print(
                f"| {pair.name} | {row['name']}{numbers} | {row['simulated']:.2f} "
                f"| {row['measured']:.2f} ({samples}) |"
            )
        for one in ratios:
            print(
                f"| {pair.name} | pipeinfer / {one['over']} | {one['simulated']:.2f} "
                f"| {one['measured']:.2f} ({one['off']:+.1%}) |"
            )
            agreed = agreed and abs(one["off"]) <= AGREE and one["measured"] > 1
        print(f"| {pair.name} | {said} | | |", flush=True)
    head = {
        "cpu": _core.cpu_info()["model"],
        "n_cpus": len(os.sched_getaffinity(0)),
        "command": " ".join(["python", "bench/cluster/strategies.py", *sys.argv[1:]]),
        "found": found,
    }
    (options.out / "wall.json").write_text(json.dumps(head, indent=1) + "\n")
    if not agreed:
        print(f"measured and simulated differ by more than {AGREE:.0%}, or PipeInfer is not ahead")
    return 0 if agreed else 1
