"""Decoding while threads do not get the cores they were made for.

usage: python bench/contention.py MODEL [MODEL ...]

More threads than cores, and neighbours that keep a core busy, against as many threads as cores on a
machine of its own; in turns of 12 tokens, there and back. Prints medians of tokens per second.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from statistics import median

import numpy as np

import pyflow
from pyflow.topology import default_threads

N_TOKENS, N_ROUNDS, N_PROMPT = 12, 8, 64
# Teams learn what cores they get while they run.
SETTLE_S = 1.0


def neighbours(n: int) -> list[subprocess.Popen[bytes]]:
    """Processes that compute for at most a minute."""
    loop = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    return [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(n)]


def decode(context: pyflow.Context, n_tokens: int) -> float:
    """Tokens per second."""
    begin = time.perf_counter()
    for token in range(n_tokens):
        context.forward(np.array([5 + token], np.int32))
    return n_tokens / (time.perf_counter() - begin)


def measure(name: str) -> None:
    n_cores, _ = default_threads()
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
                context, busy = contexts[n_threads], neighbours(n_busy)
                context.clear()
                context.forward(np.arange(N_PROMPT, dtype=np.int32), logits="none")
                end = time.monotonic() + SETTLE_S
                while time.monotonic() < end:
                    decode(context, 1)
                rates[setting].append(decode(context, N_TOKENS))
                for process in busy:
                    process.kill()
                    process.wait()
    alone = median(rates[settings[0]])
    for (n_threads, n_busy), found in rates.items():
        rate = median(found)
        print(
            f"| {name} | {n_threads} | {n_busy} | {rate:.1f} ({min(found):.1f}..{max(found):.1f}) "
            f"| {rate / alone:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("| model | threads | busy neighbours | t/s | of as many threads as cores, alone |")
    print("|---|---|---|---|---|")
    for model_name in sys.argv[1:]:
        measure(model_name)
