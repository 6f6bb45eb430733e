"""What every rank of test_cover.py runs: mpiexec -n N python cover_driver.py FOLDER.

FOLDER/task.json: parts, each a model's path, sizes and jobs: case, prompt, text, stops. Every
rank leaves there what it has sent in each part; rank 0 also what became of the jobs, and it says
which of them went wrong.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cover import SIZES, Case, check, sampling
from mpi4py import MPI

from pyflow import _core
from pyflow.cluster.mpi.endpoint import Traffic
from pyflow.cluster.mpi.layers import by_count
from pyflow.cluster.mpi.pipeline import MpiPipeline, serve


def head(part: dict[str, Any], pool: _core.ThreadPool, wrong: list[str]) -> tuple[Traffic, Any]:
    """What was sent, and counts of all jobs."""
    counts = []
    with MpiPipeline(part["path"], by_count, pool=pool, **SIZES) as pipeline:
        for job in part["jobs"]:
            case, how = Case(**job["case"]), sampling(job["case"]["is_greedy"], part["stops"])
            try:
                done = check(
                    case,
                    pipeline,
                    how,
                    prompt=job["prompt"],
                    plain=job["text"],
                    n_vocab=part["n_vocab"],
                    window=part["window"],
                )
                counts.append(asdict(done.counts))
            except AssertionError as error:
                wrong.append(str(error))
        return pipeline.sent, counts


def main(folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text())
    rank, pool = MPI.COMM_WORLD.rank, _core.ThreadPool(1)
    left: list[dict[str, Any]] = []
    wrong: list[str] = []
    for part in task:
        counts = None
        if rank == 0:
            sent, counts = head(part, pool, wrong)
        else:
            sent = serve(part["path"], pool=pool)
        left.append({"messages": sent.messages, "nbytes": sent.nbytes, "counts": counts})
    (folder / f"{rank}.json").write_text(json.dumps(left))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
