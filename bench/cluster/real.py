"""Two ranks of a real model on this machine, beside one process: speed, memory, and what travels.

usage: python bench/cluster/real.py --out FOLDER [-m MODEL] [--layers N,N] [--prompts N] [-n TOKENS]
           [--repeats N]

Each sample is a `pyflow generate --json` of its own, with one thread a process: in one process, and
under mpiexec as iterative, speculative and pipeinfer, with drafts by lookup. They take turns there
and back, prompt by prompt, so that a machine that slows down does so for all. Prompts are the code
edits of bench/data. Tokens must be those of one process. Prints a table of medians, and writes
every sample to FOLDER/real.json. Exit code: 1 where iterative loses more than 7 %, or one of the
others does not gain.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wall import find_mpiexec

from pyflow import _core, catalogue
from pyflow.errors import PyflowError

MOST_LOST = 0.07
ONE = "one process"
NAMES = (ONE, "iterative", "speculative", "pipeinfer")
_PROMPTS = Path(__file__).parents[1] / "data" / "code_prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Sample:
    """One text. resident_nbytes: of each process; of one process at most, of ranks in the end."""

    name: str
    prompt: int
    tokens_per_s: float
    resident_nbytes: list[int]
    pipeline: dict[str, Any] | None


def prompts(n: int) -> list[str]:
    """The first code edits."""
    rows = [json.loads(line) for line in _PROMPTS.read_text().splitlines()]
    return [row["prompt"] for row in rows if row["task"] == "code edit"][:n]


def run(name: str, prompt: int, path: Path, options: argparse.Namespace) -> tuple[Sample, Any]:
    """A sample, and its tokens."""
    command = [sys.executable, "-P", "-m", "pyflow", "generate", "-m", options.model, "-t", "1"]
    command += ["--temp", "0", "-n", str(options.tokens), "-c", "2048", "--json", "-f", str(path)]
    if name != ONE:
        command = [find_mpiexec(), "-n", "2", *command]
        command += ["--pipeline", name, "--layers", options.layers]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            out = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            process.terminate()  # mpiexec then ends its ranks
            raise
    if process.returncode:
        raise PyflowError(f"{name}: exit code {process.returncode} of {' '.join(command)}")
    told = json.loads(out)
    pipeline = told.get("pipeline")
    resident = pipeline["resident_nbytes"] if pipeline else [1024 * usage.ru_maxrss]
    speed = told["timings"]["predicted_per_second"]
    return Sample(name, prompt, speed, resident, pipeline), told["tokens"]


def measure(options: argparse.Namespace) -> list[Sample]:
    """All samples; PyflowError where tokens differ."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(prompts(options.prompts)):
            path = Path(folder) / f"{number}.txt"
            path.write_text(text)
            expected = None
            for name in (NAMES + NAMES[::-1]) * options.repeats:
                sample, tokens = run(name, number, path, options)
                expected = expected or tokens
                if tokens != expected:
                    raise PyflowError(f"{name}: the tokens are not those of one process")
                found.append(sample)
                print(f"{number} {name}: {sample.tokens_per_s:.2f} tokens/s", file=sys.stderr)
    return found


def ratios(samples: list[Sample], name: str) -> list[float]:
    """The speed over that of one process, for each prompt, of medians."""

    def speed(name: str, prompt: int) -> float:
        some = [s.tokens_per_s for s in samples if (s.name, s.prompt) == (name, prompt)]
        return statistics.median(some)

    return [speed(name, p) / speed(ONE, p) for p in sorted({s.prompt for s in samples})]


def table(samples: list[Sample]) -> str:
    """In Markdown."""
    lines = [
        "| | tokens/s | of one process (per prompt) | MiB resident | tokens per run |",
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        some = [s for s in samples if s.name == name]
        each = ratios(samples, name)
        sizes = zip(*(s.resident_nbytes for s in some), strict=True)
        resident = " + ".join(f"{max(size) / 2**20:.0f}" for size in sizes)
        runs = [s.pipeline["tokens_per_run"] for s in some if s.pipeline]
        lines.append(
            f"| {name} | {statistics.median(s.tokens_per_s for s in some):.2f} "
            f"| {statistics.median(each):.2f} ({', '.join(f'{r:.2f}' for r in each)}) "
            f"| {resident} | {f'{statistics.median(runs):.2f}' if runs else ''} |"
        )
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b", help="name or path")
    parser.add_argument("--layers", default="even", help="of the two ranks, e.g. 16,12")
    parser.add_argument("--prompts", type=int, default=3, help="code edits, 1 to 10")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="of a text, at most")
    parser.add_argument("--repeats", type=int, default=1, help="there and back so often")
    options = parser.parse_args(arguments)
    if not 1 <= options.prompts <= 10 or min(options.tokens - 1, options.repeats) < 1:
        parser.error("expected --prompts 1 to 10, --repeats of at least 1 and -n of at least 2")
    return options


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.model = str(catalogue.resolve(options.model))
    samples = measure(options)
    head = {
        "cpu": _core.cpu_info()["model"],
        "n_cpus": len(os.sched_getaffinity(0)),
        "command": " ".join(["python", "bench/cluster/real.py", *sys.argv[1:]]),
        "samples": [asdict(sample) for sample in samples],
    }
    (options.out / "real.json").write_text(json.dumps(head, indent=1) + "\n")
    print(table(samples))
    kept = statistics.median(ratios(samples, "iterative"))
    gained = [statistics.median(ratios(samples, name)) for name in NAMES[2:]]
    return int(kept < 1 - MOST_LOST or min(gained) <= 1)


if __name__ == "__main__":
    sys.exit(main())
