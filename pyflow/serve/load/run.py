"""Loops of users, and what they measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyflow.serve.load.client import Sample, Target, ask
from pyflow.serve.load.mixes import request

Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests come: from so many users in turn, or at a rate whatever becomes of them."""

    mix: str = "chat"
    n_requests: int = 32
    n_users: int = 0
    """A closed loop: each user asks again when the answer has come."""
    rate: float = 0.0
    """An open loop: requests per second, Poisson arrivals."""
    n_predict: int = 128
    seed: int = 1
    timeout_s: float = 600.0

    @property
    def name(self) -> str:
        return f"{self.n_users} users" if self.n_users else f"{self.rate:g}/s"


async def run(target: Target, load: Load, told: Told = lambda _done, _total: None) -> list[Sample]:
    """All requests of a load, in the order in which they were sent."""
    samples: list[Sample] = []
    numbers = iter(range(load.n_requests))

    async def one(index: int) -> None:
        kind, body = request(load.mix, index, n_predict=load.n_predict, seed=load.seed)
        samples.append(await ask(target, kind, body, load.timeout_s))
        told(len(samples), load.n_requests)

    async def user() -> None:
        for index in numbers:
            await one(index)

    if load.n_users:
        await asyncio.gather(*(user() for _ in range(load.n_users)))
    else:
        rng = random.Random(load.seed)
        async with asyncio.TaskGroup() as group:
            begin, at = time.monotonic(), 0.0
            for index in numbers:
                at += rng.expovariate(load.rate)
                await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
                group.create_task(one(index))
    return sorted(samples, key=lambda sample: sample.sent)


def measured(samples: Sequence[Sample], goodput: Mapping[str, float]) -> dict[str, Any]:
    """Rates, percentiles in milliseconds, and the share of requests that meet all of `goodput`
    (ttft, tpot, e2e, itl: milliseconds at most)."""
    good = [sample for sample in samples if not sample.error]
    seconds = max((s.ended for s in samples), default=0.0) - min(
        (s.sent for s in samples), default=0.0
    )
    values = {
        "ttft": [s.ttft for s in good],
        "itl": [gap for s in good for gap in s.gaps],
        "tpot": [s.tpot for s in good if s.n_tokens > 1],
        "e2e": [s.ended - s.sent for s in good],
    }
    n_met = sum(
        all(_worst(sample, name) <= most / 1e3 for name, most in goodput.items()) for sample in good
    )
    return {
        "n_requests": len(samples),
        "n_failed": len(samples) - len(good),
        "errors": sorted({s.error for s in samples if s.error})[:5],
        "seconds": seconds,
        "prompt_tokens": sum(s.n_prompt for s in good),
        "cached_tokens": sum(s.n_cached for s in good),
        "completion_tokens": sum(s.n_tokens for s in good),
        "tokens_per_second": sum(s.n_tokens for s in good) / seconds if seconds > 0 else 0.0,
        "requests_per_second": len(good) / seconds if seconds > 0 else 0.0,
        "goodput_per_second": n_met / seconds if goodput and seconds > 0 else None,
        **{
            f"{name}_ms": {f"p{p}": 1e3 * percentile(found, p) for p in (50, 90, 99)}
            for name, found in values.items()
        },
    }


def percentile(values: Sequence[float], p: float) -> float:
    """By nearest rank; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(p) // 100) - 1))]


def _worst(sample: Sample, name: str) -> float:
    if name == "itl":
        return max(sample.gaps, default=0.0)
    return {
        "ttft": sample.ttft,
        "tpot": sample.tpot,
        "e2e": sample.ended - sample.sent,
    }[name]
