"""What every rank of test_survey.py runs: mpiexec -n N python survey_driver.py MODEL [BAD RANK].

Rank 0 writes what was measured, as JSON; a bad rank is given no model.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from mpi4py import MPI

from pyflow import PyflowError, _core
from pyflow.cluster.survey import survey


def main(model: str, bad: str = "") -> None:
    path = "/nowhere.gguf" if bad == str(MPI.COMM_WORLD.rank) else model
    try:
        found = survey(path, pool=_core.ThreadPool(1), n_ctx=256)
    except PyflowError as error:
        sys.exit(f"error: {error}")
    if found is not None:
        pipeline = found.pipeline
        links = [[*pair, asdict(link)] for pair, link in pipeline.links.items()]
        ranks = [asdict(profile) for profile in pipeline.ranks]
        reads = found.read_bytes_per_s
        print(json.dumps([ranks, links, asdict(pipeline.layers), reads]))


if __name__ == "__main__":
    main(*sys.argv[1:])
