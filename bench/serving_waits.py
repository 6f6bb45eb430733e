"""How long a user of pyflow's server waits: the second table of docs/serving.md.

    python bench/serving_waits.py -m qwen2.5-coder-1.5b

Three things are measured: the first token of a short prompt on an idle server, in turns with the
same prompt in Python without a server; the first token of a long prompt that was asked before,
against one token of its answer; and the gaps in other users' texts while a long prompt is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from typing import Any

from serving import serve_pyflow

import pyflow
from pyflow import _core
from pyflow.serve.load.client import Sample, Target, ask
from pyflow.serve.load.run import percentile

_ITL_MS = 100.0
_WORDS = ("stone", "river", "light", "under", "seven", "paper", "green", "walks", "after", "never")
_QUESTION = "Name the capital of France."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=10)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--long", type=int, default=7800, help="words of the long prompt")
    args = parser.parse_args()
    print(f"CPU: {json.dumps(_core.cpu_info())}", file=sys.stderr)
    more = ("--itl", str(_ITL_MS))
    with serve_pyflow(args.model, str(args.threads), args.users + 1, more) as url:
        target = Target.parse(url)
        asyncio.run(_ask(target, _said("Say hello."), 8))
        with pyflow.load(args.model, n_threads=args.threads) as model:
            found = {"idle": _idle(target, model, args.rounds)}
            eos = model.tokenizer.eos_id
        found["known"] = asyncio.run(_known(target, args.rounds))
        found["beside"] = asyncio.run(_beside(target, args.users, args.long, eos))
    print(json.dumps(found, indent=2))


def _idle(target: Target, model: pyflow.Model, rounds: int) -> dict[str, Any]:
    """Milliseconds to the first text of a short prompt, by the server and without it."""
    served: list[float] = []
    direct: list[float] = []
    template = model.chat_template
    assert template is not None
    for number in range(rounds):
        # No prompt begins like one before: nothing is known already.
        messages = [{"role": "system", "content": f"{number} rivers."}, *_said(_QUESTION)]
        for side in ("served", "direct")[:: -1 if number % 2 else 1]:
            if side == "served":
                served.append(1e3 * asyncio.run(_ask(target, messages, 8)).ttft)
                continue
            begin = time.monotonic()
            with model.stream(template.encode(messages), n_predict=8) as stream:
                next(iter(stream))
                direct.append(1e3 * (time.monotonic() - begin))
    return {
        "served_ms": statistics.median(served),
        "direct_ms": statistics.median(direct),
        "served_rounds": served,
        "direct_rounds": direct,
    }


async def _known(target: Target, rounds: int) -> dict[str, Any]:
    """The first token of a prompt of some 2,000 tokens that was asked before, in steps."""
    ratios, cached, first = [], 0, 0.0
    for number in range(rounds):
        text = _said(f"{number} {_words(2000, number)} What was this about?")
        first = 1e3 * (await _ask(target, text, 2)).ttft
        sample = await _ask(target, text, 24)
        ratios.append(sample.ttft / statistics.median(sample.gaps))
        cached = sample.n_cached
    return {
        "first_ms": first,
        "steps": statistics.median(ratios),
        "steps_rounds": ratios,
        "prompt_tokens": sample.n_prompt,
        "cached_tokens": cached,
    }


async def _beside(target: Target, n_users: int, n_words: int, eos: int) -> dict[str, Any]:
    """The gaps in the texts of users while another's long prompt is read."""
    going_on = {"logit_bias": {str(eos): -100}}
    texts = [
        asyncio.create_task(_ask(target, _said(f"{i} Write a long story."), 1000, **going_on))
        for i in range(n_users)
    ]
    await asyncio.sleep(5)
    text = _said(f"{_words(n_words, 1)} What was this about?")
    long = await _ask(target, text, 8)
    gaps = [
        1e3 * (b - a)
        for sample in await asyncio.gather(*texts)
        for a, b in zip(sample.arrivals, sample.arrivals[1:], strict=False)
        if a >= long.sent and b <= long.arrivals[0]
    ]
    return {
        "prompt_tokens": long.n_prompt,
        "seconds": long.ttft,
        "users": n_users,
        "itl_ms": _ITL_MS,
        "gaps": len(gaps),
        **{f"p{p}_ms": percentile(gaps, p) for p in (50, 99, 100)},
    }


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def _ask(
    target: Target, messages: list[dict[str, str]], n_predict: int, **more: Any
) -> Sample:
    body = {"messages": messages, "max_tokens": n_predict, "temperature": 0, **more}
    sample = await ask(target, "waits", body, 600.0)
    if sample.error:
        raise SystemExit(f"request: {sample.error}")
    return sample


def _words(n: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(n))


if __name__ == "__main__":
    main()
