"""pyflow beside other runtimes: prefill and decode, the same tokens and threads, in one run.

    python bench/compare.py -m smollm2 -t 1,2 --peer-python PYTHON
    python bench/compare.py -m smollm2 -t 1,2 --only pyflow,before --before-python PYTHON

Each side is one child process that stays loaded; they work in turn, never together, and the order
is mirrored from one repeat to the next (ABBA), so that a machine that slows down or speeds up does
so for both. Medians count; the spread is the smallest and the largest. bench/README.md has more.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from report import as_markdown, draw
from sides import SIDES

from pyflow import _core
from pyflow.catalogue import resolve
from pyflow.errors import PyflowError

HERE = Path(__file__).parent
# The tokens/s of decoding fall with the context: all sides decode around this many tokens.
DECODE_CONTEXT = 150
# OpenMP's threads spin for 200 ms after their last work: the other side's clock must not run then.
SETTLE_SECONDS = 0.3


class Child:
    """A side's process and the pipe to it."""

    def __init__(self, side: str, python: str, environment: dict[str, str]) -> None:
        self.side = side
        try:
            self._process = subprocess.Popen(
                [python, str(HERE / "sides.py"), side],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for this program, which then ends the others
            )
        except OSError as error:
            raise SystemExit(
                f"{side}: {python}: cannot be run: {error.strerror}; expected the Python of an "
                "environment that has it"
            ) from None

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """One request, one answer; ends the program with the side's own words when it fails."""
        answer = self.try_to(op, **arguments)
        if "error" in answer:
            raise SystemExit(f"{self.side}: {op}: {answer['error']}")
        return answer

    def try_to(self, op: str, **arguments: Any) -> dict[str, Any]:
        """One request, one answer, which is {"error": words} when it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": "its process ended; see above"}
        )
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(slots=True)
class Series:
    """tokens/s of one side, one variant, one test; in the order measured."""

    side: str
    variant: str
    samples: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "variant": self.variant,
            "median": statistics.median(self.samples),
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": self.samples,
        }


def mirrored(turns: list[tuple[Child, str]], repeats: int) -> Iterator[tuple[Child, str]]:
    """The turns forwards, then backwards, then forwards."""
    for repeat in range(repeats):
        yield from turns if repeat % 2 == 0 else reversed(turns)


def load_sides(
    children: list[tuple[Child, tuple[str, ...]]], path: Path, n_threads: int, n_ctx: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What each side answers to the model: those that loaded it, and the words of those that can't.

    Ends the program if pyflow or every side refuses, or if vocabularies differ.
    """
    loads = {
        child.side: child.try_to("load", path=str(path), n_threads=n_threads, n_ctx=n_ctx)
        for child, _ in children
    }
    refused = {side: reply["error"] for side, reply in loads.items() if "error" in reply}
    for side, words in refused.items():
        print(f"{path.stem}: {side}: {words}", file=sys.stderr)
    if "pyflow" in refused or len(refused) == len(loads):
        raise SystemExit(f"{path}: cannot be measured")
    loads = {side: reply for side, reply in loads.items() if side not in refused}
    sizes = {reply["n_vocab"] for reply in loads.values()} - {None}
    if len(sizes) > 1:
        raise SystemExit(f"{path}: the sides disagree on the vocabulary's size: {sorted(sizes)}")
    return loads, refused


def measure(
    children: list[tuple[Child, tuple[str, ...]]],
    path: Path,
    n_threads: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Prefill and decode of one model at one thread count; a row each."""
    n_prompt, n_generate = options.n_prompt, options.n_generate
    n_before = max(1, DECODE_CONTEXT - n_generate // 2)
    n_ctx = -(-max(n_prompt, n_before + n_generate) // 256) * 256
    loads, refused = load_sides(children, path, n_threads, n_ctx)
    # A side that does not tell the size gets ids that every model has.
    n_vocab = next((n for reply in loads.values() if (n := reply["n_vocab"])), 1000)
    ids = np.random.default_rng(1).integers(0, n_vocab, max(n_prompt, DECODE_CONTEXT * 2))
    tokens: list[int] = ids.tolist()
    requests = {
        f"prefill {n_prompt}": (n_prompt, "prefill", {"tokens": tokens[:n_prompt]}),
        f"decode {n_generate} @ {n_before}": (
            n_generate,
            "decode",
            {"prompt": tokens[:n_before], "tokens": (tokens * n_generate)[:n_generate]},
        ),
    }
    turns = [
        (child, variant)
        for child, variants in children
        if child.side in loads
        for variant in variants
    ]
    rows = []
    for test, (n_tokens, op, arguments) in requests.items():
        series = {(child.side, variant): Series(child.side, variant) for child, variant in turns}
        rates: list[float] = []
        for child, variant in turns:
            child.ask(op, variant=variant, **arguments)
        for child, variant in mirrored(turns, options.repeats):
            time.sleep(SETTLE_SECONDS)
            seconds = child.ask(op, variant=variant, **arguments)["seconds"]
            series[child.side, variant].samples.append(n_tokens / seconds)
            if op == "decode":
                reply = child.ask("read_rate")
                rates += [reply["bytes_per_second"]] if reply["bytes_per_second"] else []
        summaries = [one.summary() for one in series.values()]
        best = {
            side: max((s for s in summaries if s["side"] == side), key=lambda s: s["median"])
            for side in dict.fromkeys(s["side"] for s in summaries)
        }
        row = {
            "model": path.stem,
            "n_threads": n_threads,
            "test": test,
            "best": best,
            "all": summaries,
            "refused": refused,
            "bytes_per_token": loads.get("pyflow", {}).get("bytes_per_token"),
            "read_bytes_per_second": statistics.median(rates) if rates else None,
        }
        rows.append(row)
        print(f"{path.stem} t={n_threads} {test}", file=sys.stderr)
    return rows


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", nargs="+", default=["smollm2"], help="names or paths")
    parser.add_argument("-t", "--threads", default="1,2", help="thread counts, e.g. 1,2")
    parser.add_argument("-p", "--n-prompt", type=int, default=512)
    parser.add_argument("-n", "--n-generate", type=int, default=64)
    parser.add_argument("-r", "--repeats", type=int, default=5)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="a Python that can import llama_cpp"
    )
    parser.add_argument(
        "--openvino-python", metavar="PYTHON", help="also measure openvino-genai, in this Python"
    )
    parser.add_argument(
        "--before-python", metavar="PYTHON", help="also measure the pyflow of this Python"
    )
    parser.add_argument("--isa", help="kernel table that pyflow must use, e.g. avx2")
    parser.add_argument(
        "--only", metavar="SIDES", help=f"of {','.join(SIDES)}, measure these alone"
    )
    parser.add_argument("-o", "--output", choices=["md", "json"], default="md")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the ratios")
    options = parser.parse_args(arguments)
    try:
        options.threads = [int(count) for count in options.threads.split(",")]
    except ValueError:
        parser.error(f"-t {options.threads}: expected numbers with commas between them")
    pythons = {
        "pyflow": sys.executable,
        "before": options.before_python,
        "llama.cpp": options.peer_python,
        "openvino": options.openvino_python,
    }
    only = options.only.split(",") if options.only else [s for s in SIDES if pythons[s]]
    for side in only:
        if side not in SIDES:
            parser.error(f"--only {side}: expected one of {', '.join(SIDES)}")
        if pythons[side] is None:
            parser.error(f"--only {side}: give its Python, --{side}-python")
    options.pythons = {side: pythons[side] for side in SIDES if side in only}
    if options.plot and len(only) == 1:
        parser.error("--plot: a ratio needs two sides; leave --only out")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot: matplotlib is not here; run 'pip install matplotlib'")
    counts = [*options.threads, options.n_prompt, options.n_generate, options.repeats]
    if min(counts) < 1:
        parser.error("-t, -p, -n and -r must be at least 1")
    return options


def main() -> int:
    options = parse()
    try:
        paths = [resolve(model).resolve() for model in options.model]
        cpu = _core.cpu_info()["model"]
    except PyflowError as error:
        raise SystemExit(str(error)) from None
    with ExitStack() as stack:
        children = []
        sides: dict[str, dict[str, Any]] = {}
        for side, python in options.pythons.items():
            environment = {"PYFLOW_ISA": options.isa} if options.isa else {}
            child = stack.enter_context(Child(side, python, environment))
            sides[side] = child.ask("describe")
            children.append((child, tuple(sides[side]["variants"])))
        run: dict[str, Any] = {
            "cpu": cpu,
            "n_cpus": len(os.sched_getaffinity(0)),
            "load_average_before": os.getloadavg()[0],
            "command": " ".join(["python", "bench/compare.py", *sys.argv[1:]]),
            "repeats": options.repeats,
            "sides": sides,
            "rows": [],
        }
        if run["load_average_before"] > run["n_cpus"]:
            print(
                f"warning: a load average of {run['load_average_before']:.1f} on {run['n_cpus']} "
                "CPUs: the ratios will be those of a busy machine",
                file=sys.stderr,
            )
        interrupted = False
        try:
            for path in paths:
                for n_threads in options.threads:
                    run["rows"] += measure(children, path, n_threads, options)
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted", file=sys.stderr)
    print(json.dumps(run, indent=1) if options.output == "json" else as_markdown(run))
    if options.plot and run["rows"]:
        draw(run, options.plot)
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
