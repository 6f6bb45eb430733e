"""How diverse texts are by decoding strategy, beside what people wrote in their place.

    python bench/diversity.py -m smollm2 -f wiki.test.raw

Prompts are the first tokens of paragraphs. Texts do not end early: tokens that end them are banned.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import pyflow
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.text import markdown_table

_ALL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
STRATEGIES = {
    "greedy": SamplingParams(temperature=0),
    "greedy, DRY 0.8": SamplingParams(temperature=0, dry_multiplier=0.8),
    "FSD": SamplingParams(fsd=1),
    "randomized FSD": replace(_ALL, fsd=2, top_k=8, top_p=0.93),
    "top-p 0.95": replace(_ALL, top_p=0.95),
    "typical 0.2": replace(_ALL, typical_p=0.2),
    "mirostat 2, 5 bits": replace(_ALL, mirostat=2),
    "default": SamplingParams(),
}


def distinct(tokens: Sequence[int], n: int) -> float:
    """Different n-grams per n-gram of a text."""
    found = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(found)) / len(found)


def prompts(tokenizer: pyflow.Tokenizer, text: str, n_texts: int, n_tokens: int) -> list[list[int]]:
    """Beginnings of paragraphs that are long enough, evenly spaced in the text."""
    lines = [line.strip() for line in text.splitlines() if len(line) > 4 * n_tokens]
    long = [ids for line in lines if len(ids := tokenizer.encode(line)) >= n_tokens]
    if len(long) < n_texts:
        raise SystemExit(f"expected {n_texts} paragraphs of {n_tokens} tokens, found {len(long)}")
    return [long[i * len(long) // n_texts][:n_tokens] for i in range(n_texts)]


def row(name: str, texts: Sequence[Sequence[int]], logprobs: Sequence[float]) -> list[str]:
    means = [np.mean([distinct(text, n) for text in texts]) for n in (1, 2, 3, 4)]
    shares = [*means[:3], 1 - means[3]]
    return [name, *(f"{share:.3f}" for share in shares), f"{np.exp(-np.mean(logprobs)):.1f}"]


def main() -> None:
    try:
        measure()
    except (PyflowError, OSError) as error:
        raise SystemExit(str(error)) from None


def measure() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("-f", "--file", type=Path, required=True, help="a text of paragraphs")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=32, help="tokens")
    parser.add_argument("-n", "--n-predict", type=int, default=128, help="tokens of a text")
    parser.add_argument("-s", "--seed", type=int, default=1)
    parser.add_argument("-t", "--threads", type=int)
    args = parser.parse_args()
    text = args.file.read_text(encoding="utf-8")
    with pyflow.load(args.model, n_threads=args.threads) as model:
        n_prompt, n = args.prompt_len, args.n_predict
        whole = prompts(model.tokenizer, text, args.texts, n_prompt + n)
        known = {"seed": args.seed, "n_logprobs": 1}
        ends = tuple(model.tokenizer.stop_ids)
        rows = []
        with model.context(n_prompt + n) as context:
            written = []
            for ids in whole:
                context.clear()
                logits = context.forward(ids, logits="all")[n_prompt - 1 : -1].astype(np.float64)
                top = logits.max(axis=1)
                sums = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
                written += [*(logits[np.arange(n), ids[n_prompt:]] - sums)]
        rows.append(row("people", [ids[n_prompt:] for ids in whole], written))
        for name, sampling in STRATEGIES.items():
            how = replace(sampling, banned_tokens=ends, **known)
            given = [ids[:n_prompt] for ids in whole]
            done = model.generate(given, n_predict=n, sampling=how)
            drawn = [each.logprob for one in done for each in one.logprobs or ()]
            rows.append(row(name, [one.tokens for one in done], drawn))
    head = ["strategy", "distinct-1", "distinct-2", "distinct-3", "repetition", "perplexity"]
    print(markdown_table(head, rows, ["strategy"]))


if __name__ == "__main__":
    main()
