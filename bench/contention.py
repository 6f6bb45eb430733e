"""Decoding while threads do not get the cores they were made for.

    python bench/contention.py MODEL [MODEL ...]

More threads than cores, and neighbours that keep a core busy, against as many threads as cores on a
machine of its own; in turns of 12 tokens, there and back. Prints medians of tokens per second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import numpy as np

import pyflow
from pyflow.engine.topology import cgroup_cpus, choose_threads, this_machine
from pyflow.errors import PyflowError

N_TOKENS, N_ROUNDS, N_PROMPT = 12, 8, 64
# Teams learn what cores they get while they run.
SETTLE_S = 1.0


@contextmanager
def neighbours(n: int) -> Iterator[None]:
    """Beside n processes that compute, for at most a minute."""
    loop = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def decode(context: pyflow.Context, n_tokens: int) -> float:
    """Tokens per second."""
    begin = time.perf_counter()
    for token in range(n_tokens):
        context.forward(np.array([5 + token], np.int32))
    return n_tokens / (time.perf_counter() - begin)


def measure(name: str) -> None:
    n_cores, _ = choose_threads(this_machine(), cgroup_cpus())
    settings = [(n_cores, 0), (2 * n_cores, 0), (n_cores, 1), (n_cores, n_cores)]
    rates: dict[tuple[int, int], list[float]] = {setting: [] for setting in settings}
    with ExitStack() as stack:
        contexts = {}
        for n_threads in {n_threads for n_threads, _ in settings}:
            model = stack.enter_context(pyflow.load(name, n_threads=n_threads))
            contexts[n_threads] = stack.enter_context(model.context(2048))
        for i in range(N_ROUNDS):
            for setting in settings if i % 2 else settings[::-1]:
                n_threads, n_busy = setting
                context = contexts[n_threads]
                with neighbours(n_busy):
                    context.clear()
                    context.forward(np.arange(N_PROMPT, dtype=np.int32), logits="none")
                    end = time.monotonic() + SETTLE_S
                    while time.monotonic() < end:
                        decode(context, 1)
                    rates[setting].append(decode(context, N_TOKENS))
    alone = median(rates[settings[0]])
    for (n_threads, n_busy), found in rates.items():
        rate = median(found)
        print(
            f"| {name} | {n_threads} | {n_busy} | {rate:.1f} ({min(found):.1f}..{max(found):.1f}) "
            f"| {rate / alone:.2f} |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    print("| model | threads | busy neighbours | t/s | of as many threads as cores, alone |")
    print("|---|---|---|---|---|", flush=True)
    try:
        for name in options.models:
            measure(name)
    except PyflowError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
