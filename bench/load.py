"""From the start of a program to the first logits, beside what its memory alone costs.

    python bench/load.py [-m MODEL ...] [-t N] [-r N]

A loaded model is new memory of the size of its weights. The host of a virtual machine may have lent
that to others, and then takes longer to give it back than pyflow to fill it. So each turn comes in
two: as memory comes, and after as many threads have touched (and given back) three times as much,
which takes the time that is shown. Then a new process imports pyflow, loads the model, whose file
is in the page cache, and runs a prompt of four tokens.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import pyflow
from pyflow.errors import PyflowError

_PROGRAM = """
import sys, time
start = time.monotonic()
import pyflow
with pyflow.load(sys.argv[1], n_threads=int(sys.argv[2])) as model:
    loaded = time.monotonic() - start
    with model.context(512) as context:
        context.forward([1, 2, 3, 4])
        print(loaded, time.monotonic() - start, model.load_ms / 1e3)
"""


def touch(nbytes: int, n_threads: int) -> float:
    """Seconds until every page of so much new memory has been written to."""
    start = time.monotonic()
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    parts = np.array_split(np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE], n_threads)
    with ThreadPoolExecutor(n_threads) as threads:
        list(threads.map(lambda part: part.fill(1), parts))
    parts.clear()  # or the memory could not be given back
    memory.close()
    return time.monotonic() - start


def run(name: str, n_threads: int) -> list[float]:
    """Of a new process: seconds until the model is there, until its first logits, and of load."""
    command = [sys.executable, "-P", "-c", _PROGRAM, name, str(n_threads)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise PyflowError(f"{name}: the process that loads it ended with {done.returncode}")
    return [float(word) for word in done.stdout.split()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("-m", "--models", nargs="+", default=["qwen2.5-coder-1.5b"], help="names")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of the loading")
    parser.add_argument("-r", "--repeats", type=int, default=5, help="turns of each kind")
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md", help="form")
    options = parser.parse_args()
    if min(options.threads, options.repeats) < 1:
        parser.error("-t and -r: expected 1 or more")
    try:
        show(measure(options), options.output)
    except PyflowError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """For each model and kind of memory, the samples and their medians."""
    rows: list[dict[str, Any]] = []
    for name in options.models:
        nbytes = pyflow.plan(name).weights
        run(name, options.threads)  # brings the file into the page cache
        samples: dict[str, list[list[float]]] = {"as it comes": [], "touched before": []}
        for turn in range(options.repeats):
            for memory in list(samples)[:: 1 if turn % 2 else -1]:
                given = touch(3 * nbytes, options.threads) if memory == "touched before" else 0.0
                samples[memory].append([given, *run(name, options.threads)])
        for memory, found in samples.items():
            rows.append({"model": name, "weights": nbytes, "memory": memory, "samples": found})
            for i, key in enumerate(("touch_s", "loaded_s", "first_logits_s", "load_s")):
                rows[-1][key] = statistics.median(sample[i] for sample in found)
    return rows


def show(rows: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        json.dump(rows, sys.stdout, indent=1)
        return
    print("| model | weights, MiB | memory | touching it | loaded | first logits |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        ends = [sample[2] for sample in row["samples"]]
        print(
            f"| {row['model']} | {row['weights'] / 2**20:.0f} | {row['memory']} "
            f"| {row['touch_s']:.2f} s | {row['loaded_s']:.2f} s "
            f"| {row['first_logits_s']:.2f} s ({min(ends):.2f}..{max(ends):.2f}) |"
        )


if __name__ == "__main__":
    sys.exit(main())
