"""Two members of one stage on this machine, beside one process: decode, prefill, and each gather.

usage: python bench/cluster/members.py [-m MODEL] [-p TOKENS] [-n TOKENS] [--repeats N]
           [--link shm|tcp] [-o FILE.json]

Four sides take turns there and back (ABBA): one process with one thread, one with two, and two
processes with one thread each, which share the rows of every matrix and are members of a group over
shared memory or loopback TCP. All feed the same prompt as prefill, and then the same tokens one by
one, so that nothing but the model's steps is timed. The logits of both members must be those of one
process, byte for byte.

A gather's time is what a token of two members takes beyond half of what it takes one thread, over
its gathers: waits of members for each other too. "idle" is a round alone, after pauses of work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pyflow import _core, catalogue, formats
from pyflow.cluster.planning.members import PAUSE_S, SIZES
from pyflow.engine.memory import resident_nbytes
from pyflow.specs import build_spec
from pyflow.text import markdown_table

SIDES = ("one thread", "two threads", "two members")
_WARM = 3


@dataclass(frozen=True, slots=True)
class Task:
    """What a process does: feed n_prompt tokens as prefill, and n_tokens one by one."""

    path: str
    n_threads: int
    member: tuple[int, int]
    n_prompt: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of the prompt and of each token; a hash of all logits; memory after the load."""

    prompt_s: float
    token_s: list[float]
    digest: str
    resident_nbytes: int
    gathers: tuple[int, int]
    """Of the tokens: rounds, and the bytes that came."""


def work(task: Task, link: _core.Link | None, ready: Callable[[], None]) -> Sample:
    """One sample, in a process of its own."""
    before = resident_nbytes() or 0
    checkpoint = formats.open(task.path)
    spec = build_spec(checkpoint)
    pool = _core.ThreadPool(task.n_threads)
    stage = _core.Stage(checkpoint.native, spec.stage(), pool, member=task.member)
    n_ctx = task.n_prompt + task.n_tokens + _WARM
    context = _core.Context(
        stage, n_ctx=n_ctx, n_seq_max=1, n_batch=task.n_prompt, cache_type="f16", link=link
    )
    held = (resident_nbytes() or 0) - before
    tokens = np.random.default_rng(1).integers(0, spec.n_vocab, n_ctx).astype(np.int32)
    at = np.arange(n_ctx, dtype=np.int32)
    hashed = hashlib.sha256()

    def step(first: int, n: int, regime: str) -> float:
        rows = np.array([n - 1], np.int32)
        begun = time.monotonic()
        logits = context.forward(tokens[first : first + n], at[first : first + n], 0, rows, regime)
        spent = time.monotonic() - begun
        hashed.update(np.asarray(logits).tobytes())
        return spent

    ready()
    if link is not None:
        link.meet(b"bench")
    step(0, task.n_prompt, "prefill")
    context.clear()
    prompt_s = step(0, task.n_prompt, "prefill")
    for i in range(_WARM):
        step(task.n_prompt + i, 1, "decode")
    earlier = (0, 0) if link is None else link.gathers
    first = task.n_prompt + _WARM
    token_s = [step(first + i, 1, "decode") for i in range(task.n_tokens)]
    later = (0, 0) if link is None else link.gathers
    made = later[0] - earlier[0], later[1] - earlier[1]
    return Sample(prompt_s, token_s, hashed.hexdigest(), held, made)


def _process(task: Task, ends: Sequence[int], kind: str, pipe: Connection, core: int) -> None:
    if task.member[1] > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    own, of = task.member
    link = None
    if of > 1:
        shared = kind == "shm"
        fds = [end if m != own else -1 for m, end in enumerate(ends)]
        link = _core.Link.shared(ends[0], own, of) if shared else _core.Link.sockets(fds, own)
    try:
        pipe.send(work(task, link, lambda: None))
    except BaseException as error:
        pipe.send(error)


def _ends(kind: str) -> list[list[int]]:
    """File descriptors of two members."""
    if kind == "shm":
        board = os.memfd_create("board")
        os.ftruncate(board, _core.Link.shared_nbytes(2))
        return [[board], [board]]
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return [[-1, one.detach()], [other.detach(), -1]]


def sample(path: str, side: str, options: argparse.Namespace) -> list[Sample]:
    """Of each process of a side."""
    n = 2 if side == "two members" else 1
    n_threads = 2 if side == "two threads" else 1
    ends = _ends(options.link) if n == 2 else [[]]
    context = get_context("fork")
    started = []
    for m in range(n):
        here, there = context.Pipe()
        task = Task(path, n_threads, (m, n), options.prompt, options.tokens)
        process = context.Process(target=_process, args=(task, ends[m], options.link, there, m))
        process.start()
        started.append((process, here))
    for fd in {fd for some in ends for fd in some if fd >= 0}:
        os.close(fd)
    found = [here.recv() for _, here in started]
    for process, _ in started:
        process.join()
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def idle_us(kind: str) -> list[float]:
    """Median us of a round of two of each of SIZES, after pauses of work."""
    ends = _ends(kind)
    context = get_context("fork")
    here, there = context.Pipe()

    def run(m: int) -> list[float]:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[m]})
        fds = [end if i != m else -1 for i, end in enumerate(ends[m])]
        shared = kind == "shm"
        link = _core.Link.shared(ends[m][0], m, 2) if shared else _core.Link.sockets(fds, m)
        link.meet(b"idle")
        times = (link.time_rounds(nbytes // 2, 201, PAUSE_S) for nbytes in SIZES)
        return [1e6 * statistics.median(each) for each in times]

    processes = [context.Process(target=lambda m=m: there.send(run(m))) for m in range(2)]
    for process in processes:
        process.start()
    found = [here.recv() for _ in processes]
    for process in processes:
        process.join()
    return [min(pair) for pair in zip(*found, strict=True)]


def told(samples: dict[str, list[list[Sample]]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians of each side, and what a gather costs."""
    rows: dict[str, Any] = {}
    for side, turns in samples.items():
        tokens = [1e3 * statistics.median(turn[0].token_s) for turn in turns]
        prompts = [options.prompt / turn[0].prompt_s for turn in turns]
        rows[side] = {
            "token_ms": statistics.median(tokens),
            "token_ms_of_turns": tokens,
            "prefill_per_s": statistics.median(prompts),
            "resident_nbytes": [each.resident_nbytes for each in turns[0]],
        }
    members = samples["two members"]
    n_rounds = members[0][0].gathers[0] / options.tokens
    ideal = rows["one thread"]["token_ms"] / 2
    rows["two members"] |= {
        "rounds_per_token": n_rounds,
        "gathered_nbytes_per_token": members[0][0].gathers[1] / options.tokens,
        "us_per_gather_over_half_of_one_thread": 1e3
        * (rows["two members"]["token_ms"] - ideal)
        / n_rounds,
    }
    return rows


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b", help="name or path")
    parser.add_argument("-p", "--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens of decoding")
    parser.add_argument("--repeats", type=int, default=2, help="there and back so often")
    parser.add_argument("--link", choices=["shm", "tcp"], default="shm")
    parser.add_argument("-o", "--out", type=Path, help="all figures as JSON")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    path = str(catalogue.resolve(options.model))
    samples: dict[str, list[list[Sample]]] = {side: [] for side in SIDES}
    for side in (SIDES + SIDES[::-1]) * options.repeats:
        samples[side].append(sample(path, side, options))
        ms = 1e3 * statistics.median(samples[side][-1][0].token_s)
        print(f"{side}: {ms:.2f} ms", file=sys.stderr)
    digests = {each.digest for turns in samples.values() for turn in turns for each in turn}
    if len(digests) > 1:
        print("error: the logits of members are not those of one process", file=sys.stderr)
        return 1
    rows = told(samples, options)
    idle = dict(zip(map(str, SIZES), idle_us(options.link), strict=True))
    base = rows["two threads"]
    table = [
        [
            side,
            f"{row['token_ms']:.2f}",
            f"{rows['one thread']['token_ms'] / row['token_ms']:.2f}",
            f"{base['token_ms'] / row['token_ms']:.2f}",
            f"{row['prefill_per_s']:.0f}",
            f"{row['prefill_per_s'] / base['prefill_per_s']:.2f}",
            " + ".join(f"{n / 2**20:.0f}" for n in row["resident_nbytes"]),
        ]
        for side, row in rows.items()
    ]
    head = ["", "ms a token", "of one thread", "of two threads", "prefill, t/s", "of two threads"]
    print(markdown_table([*head, "MiB"], table, left={""}))
    members = rows["two members"]
    print(
        f"\n{members['rounds_per_token']:.0f} gathers a token, "
        f"{members['us_per_gather_over_half_of_one_thread']:.1f} us each beyond half of one "
        f"thread's time; idle: "
        + ", ".join(f"{us:.1f} us for {size} bytes" for size, us in idle.items())
    )
    if options.out:
        told_all = {
            "cpu": _core.cpu_info()["model"],
            "command": " ".join(["python", "bench/cluster/members.py", *sys.argv[1:]]),
            "sides": rows,
            "idle_us": idle,
            "samples": {s: [[asdict(e) for e in t] for t in ts] for s, ts in samples.items()},
        }
        options.out.write_text(json.dumps(told_all, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
