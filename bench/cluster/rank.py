"""What every rank of wall.py runs: mpiexec -n N python rank.py TASK.

TASK is what wall.py has written: a model, a prompt, a pair and turns. Each turn is a
strategy on stages that take the time of the pair's model on nodes of cluster C. Beside TASK rank 0
leaves the times of all tokens, and each rank how long it was late.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clusters import PAIRS
from mpi4py import MPI
from msgspec.structs import replace
from oracle import Oracle
from simulate import N_PARTITIONS, N_ROWS_PROMPT, N_SPARE
from wall import places

import pyflow
from pyflow import SamplingParams, _core
from pyflow.cluster.mpi.pipeline import MpiPipeline, serve
from pyflow.cluster.planning.virtual import ClusterTimes
from pyflow.cluster.run.driver import DraftThread, write
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.stage import ModelStage
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.wire.messages import Frame, Result

GREEDY = SamplingParams(temperature=0, seed=0)


class SlowStage(ModelStage):
    """Computes, and then waits until a node of another cluster would be done.

    A cancellation ends the wait where that node ends a layer.
    """

    def __init__(self, *args: Any, times: ClusterTimes, number: int, late: list[float], **kw: Any):
        """number: which of the stages of `times` it is. late: gets the seconds of each run that it
        computed for longer than that node would."""
        super().__init__(*args, **kw)
        self._run_s, self._n = times.stage_s[number], times.n_layers[number]
        self._late = late

    def handle(self, frame: Frame) -> Frame | Result | None:
        begun = time.monotonic()
        out = super().handle(frame)
        if out is None or frame.run is None or out.skipped:
            return out
        seconds = self._run_s(len(frame.run.tokens))
        self._late.append(max(0.0, time.monotonic() - begun - seconds))
        for layer in range(1, self._n + 1):
            time.sleep(max(0.0, begun + seconds * layer / self._n - time.monotonic()))
            if self._is_left_out(frame.run.number):
                if isinstance(out, Frame):
                    return replace(out, hidden=None, skipped=True)
                return replace(out, draws=(), skipped=True)
        return out


def ranges(n_layers: int, n_ranks: int, *, apart: bool) -> list[range]:
    """The layers of the real model by rank."""
    n = n_ranks - apart
    cuts = [n_layers * i // n for i in range(n + 1)]
    return [range(0)] * apart + [range(cuts[i], cuts[i + 1]) for i in range(n)]


def timed(
    pipeline: MpiPipeline, task: dict[str, Any], text: Sequence[int], turn: dict[str, Any]
) -> list[float]:
    """Seconds of each token of the task, by the clock of the head."""
    pipeline.reset(GREEDY)
    n_prompt = len(task["prompt"])
    job = Job(
        prompt=task["prompt"],
        n_predict=task["n_tokens"],
        n_ctx=n_prompt + task["n_tokens"] + N_SPARE,
        n_batch=N_ROWS_PROMPT,
        n_partitions=N_PARTITIONS,
        epoch=pipeline.epoch,
    )
    oracle = Oracle(text, PAIRS[task["pair"]].alpha, task["n_vocab"], draft_s=turn["draft_s"])
    begun = time.monotonic()
    times: list[float] = []
    found: list[int] = []
    with DraftThread(oracle, pipeline) as channel:
        scheduler = Scheduler(job, Strategy(**turn["strategy"]))
        for tokens in write(scheduler, pipeline, channel):
            times += [time.monotonic() - begun] * len(tokens)
            found += tokens
    if found != list(text[n_prompt:]):
        raise AssertionError(f"{turn['name']}: the tokens are not those of one place")
    return times


def main(path: Path) -> None:
    task: dict[str, Any] = json.loads(path.read_text())
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    sizes: Any = {
        "n_ctx": len(task["prompt"]) + task["n_tokens"] + N_SPARE,
        "n_seq_max": 1 + N_PARTITIONS,
        "n_batch": N_ROWS_PROMPT,
    }
    late: list[float] = []
    measured = []
    text: list[int] = []
    if rank == 0:
        with pyflow.load(task["model"], n_threads=1) as model:
            plain = model.generate(task["prompt"], n_predict=task["n_tokens"], sampling=GREEDY)
            text = [*task["prompt"], *plain.tokens]
    for turn in task["turns"]:
        pair = PAIRS[task["pair"]]
        times = places(size, pair, task["slower"], apart=turn["apart"]).times(pair)
        make = partial(SlowStage, times=times, number=max(0, rank - turn["apart"]), late=late)
        layers = ranges(task["n_layers"], size, apart=turn["apart"])
        pool = _core.ThreadPool(1)
        if rank != 0:
            serve(task["model"], pool=pool, make=make)
            continue
        with MpiPipeline(task["model"], layers, pool=pool, make=make, **sizes) as pipeline:
            at = timed(pipeline, task, text, turn | {"draft_s": times.draft_s})
        measured.append({"name": turn["name"], "times": at})
        print(f"{turn['name']}: {len(at)} tokens in {at[-1]:.1f} s", file=sys.stderr, flush=True)
    left = {"turns": measured, "late": late}
    (path.parent / f"rank{rank}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
