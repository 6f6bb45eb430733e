"""Vectors and translations beside other programs: texts a second, alone and in the best batch.

    python bench/texts/measure.py SIDE=PATH[@PYTHON]... [--length 10,40] [--batch 1,8,32] [-t 2]

    python bench/texts/measure.py pyflow=minilm pyflow-q8_0=minilm torch=FOLDER@PEER/bin/python \
        onnx=minilm.onnx@PEER/bin/python onnx-int8=minilm-int8.onnx@PEER/bin/python \
        llama.cpp=minilm-f32.gguf@PEER2/bin/python llama.cpp-q8_0=minilm-q8_0.gguf@PEER2/bin/python
    python bench/texts/measure.py pyflow-texts=CT2 pyflow-texts-int8=CT2-int8 \
        ctranslate2=CT2@PEER/bin/python ctranslate2-int8=CT2-int8@PEER/bin/python

Sides are named in sides.py; each is a child process that stays loaded. They work in turn, and the
order is mirrored from one repeat to the next. Texts are random ids, the same for all; those of a
batch have one length, which spares padding. Translations have as many tokens as their source.
The last column compares results with those of the first side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SETTLE_S = 0.2  # threads of OpenMP spin so long after their last work


class Child:
    """A side's process and the pipe to it."""

    def __init__(self, given: str, n_threads: int) -> None:
        self.side, _, rest = given.partition("=")
        path, _, python = rest.partition("@")
        environment = {name: str(n_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} | {
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = subprocess.Popen(
            [python or sys.executable, str(HERE / "sides.py"), self.side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.name = self.ask(op="load", path=path, n_threads=n_threads)["name"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, one answer; ends the program with the side's words when it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise SystemExit(f"{self.side}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._process.communicate()


def likeness(found: Any, first: Any) -> str:
    """The least cosine of vectors, or the share of equal tokens."""
    one, other = np.array(found), np.array(first)
    if one.dtype.kind == "i":
        return f"{(one == other).mean():.0%} of tokens"
    return f"{(one * other).sum(axis=1).min():.5f}"


def measure(children: list[Child], options: argparse.Namespace, length: int) -> None:
    """Prints a line for each side."""
    random = np.random.default_rng(length)
    texts = random.integers(1000, options.ids, (max(options.batch), length)).tolist()
    speeds: dict[tuple[str, int], list[float]] = {}
    results: dict[str, Any] = {}
    for repeat in range(options.repeats):
        for batch in options.batch:
            for child in children if repeat % 2 == 0 else children[::-1]:
                time.sleep(SETTLE_S)
                answer = child.ask(
                    op="run",
                    texts=texts[:batch],
                    n_predict=length,
                    least_s=options.seconds,
                )
                speeds.setdefault((child.side, batch), []).append(batch / answer["seconds"])
                results[child.side] = answer["result"]
    for child in children:
        medians = {b: statistics.median(speeds[child.side, b]) for b in options.batch}
        best = max(medians, key=medians.__getitem__)
        spread = [
            f"{medians[b]:.4g} ({min(speeds[child.side, b]):.4g}..{max(speeds[child.side, b]):.4g})"
            for b in (min(options.batch), best)
        ]
        like = likeness(results[child.side], results[children[0].side])
        cells = [str(length), child.side, *spread, str(best), like]
        print("| " + " | ".join(cells) + " |", flush=True)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sides", nargs="+", metavar="SIDE=PATH[@PYTHON]")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--length", type=numbers, default=[10, 40, 130, 500])
    parser.add_argument("--batch", type=numbers, default=[1, 8, 32])
    parser.add_argument("--ids", type=int, default=30000, help="tokens are 1000 to this")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="of work for a sample")
    options = parser.parse_args()
    children = [Child(given, options.threads) for given in options.sides]
    for child in children:
        print(f"- {child.side}: {child.name}")
    print("\n| tokens | side | one text | best batch | of | like the first |\n" + "|---" * 6 + "|")
    for length in options.length:
        measure(children, options, length)
    for child in children:
        child.close()


if __name__ == "__main__":
    main()
