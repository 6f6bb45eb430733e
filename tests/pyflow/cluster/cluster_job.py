"""A job on every rank: python -m cluster_job bench MODEL N_PREDICT TEMPERATURE.

Rank 0 prints tokens as they come.
"""

from __future__ import annotations

import sys

from mpi4py import MPI

from pyflow import SamplingParams, _core
from pyflow.cluster.head import Drafting, write
from pyflow.cluster.job import Job
from pyflow.cluster.journal import Journal
from pyflow.cluster.mpi import MpiPipeline, serve
from pyflow.cluster.oracle import Oracle
from pyflow.cluster.scheduler import Scheduler
from pyflow.cluster.strategy import pipeinfer
from pyflow.cluster.threads import Sizes
from pyflow.errors import PyflowError

N_LAYERS = 30
SIZES: Sizes = {"n_ctx": 512, "n_seq_max": 6, "n_batch": 8}


def head(path: str, ranges: list[range], n: int, temperature: float) -> None:
    with MpiPipeline(path, ranges, pool=_core.ThreadPool(1), **SIZES) as pipeline:
        prompt = [*range(100, 140)]
        journal = Journal.of_process()
        sampling = SamplingParams(temperature=temperature, seed=3)
        committed = () if journal is None else journal.begin(prompt, sampling)
        pipeline.reset(sampling)
        job = Job(
            prompt=prompt,
            committed=committed,
            n_predict=n,
            n_ctx=512,
            n_batch=8,
            n_partitions=5,
            epoch=pipeline.epoch,
        )
        with Drafting(Oracle([*prompt, *prompt], 0.5, 1000), pipeline) as drafting:
            for tokens in write(Scheduler(job, pipeinfer(2, 4)), pipeline, drafting, journal):
                print(*tokens, end=" ", flush=True)
    print()


def main(_: str, path: str, n: str, temperature: str) -> int:
    size = MPI.COMM_WORLD.size
    ranges = [range(N_LAYERS * i // size, N_LAYERS * (i + 1) // size) for i in range(size)]
    if MPI.COMM_WORLD.rank:
        serve(path, pool=_core.ThreadPool(1))
        return 0
    try:
        head(path, ranges, int(n), float(temperature))
    except PyflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
