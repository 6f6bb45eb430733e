"""How many tokens per step trained heads give, whatever they cost: their guesses held against
answers that the model has written once, plainly.

    python bench/speculation/walk.py --prompts QUESTIONS FOLDER... > walk.md

At each step the longest path of the draft stands that the answer goes on with, and a token more.
Speculation gives just that, at temperature 0 and with the same seed above it. So folders, formats
and sizes of trees are compared on the same tokens, without a clock.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pyflow
from pyflow import _core
from pyflow.sampling import SamplingParams
from pyflow.speculate.trained import files
from pyflow.speculate.tree import DraftTree

sys.path.append(str(Path(__file__).parent))

import questions


@dataclass(frozen=True, slots=True)
class Written:
    """An answer, and what the model's head got when it drew each token."""

    task: str
    tokens: list[int]
    hidden: NDArray[np.float32]


def write(
    model: pyflow.Model, prompt: list[int], task: str, n: int, sampling: SamplingParams
) -> Written:
    """The model's answer, at most n tokens."""
    stops = model.defaults.stop_ids | model.tokenizer.stop_ids
    sampler, tokens, hidden = sampling.sampler(), list[int](), []
    sampler.accept_all(prompt)
    with model.context(len(prompt) + n, n_batch=len(prompt)) as context:
        entry = _core.Entry(0, prompt, sampler, hidden=[-1], regime="prefill")
        while len(tokens) < n:
            (result,) = context.step([entry])
            result.check()
            tokens.append(result.drawn[0].token)
            hidden.append(result.hidden)
            if tokens[-1] in stops:
                break
            entry = _core.Entry(0, tokens[-1:], sampler, hidden=[-1])
    return Written(task, tokens, np.stack(hidden))


def steps(heads: _core.Heads, written: Written, n_nodes: int, width: int) -> Iterator[int]:
    """How many guesses stand, step by step."""
    place, end = 0, len(written.tokens) - 1
    while place < end:
        root, depth = written.tokens[place], min(heads.n_heads, end - place)
        found = heads.draft(written.hidden[place], root, n_nodes, depth, width=width)
        tree, node, n = DraftTree(*found), -1, 0
        while n < depth and (node := tree.child(node, written.tokens[place + 1 + n])) >= 0:
            n += 1
        yield n
        place += 1 + n


def rates(heads: _core.Heads, answers: Sequence[Written], trees: Sequence[int]) -> list[float]:
    """Tokens per step of a chain and of trees of so many nodes."""
    n_tokens = sum(len(each.tokens) - 1 for each in answers)
    shapes = [(heads.n_heads, 1), *((n, n) for n in trees)]
    found = []
    for n_nodes, width in shapes:
        n_steps = sum(1 for each in answers for _ in steps(heads, each, n_nodes, width))
        found.append(n_tokens / n_steps)
    return found


def numbers(text: str) -> list[int]:
    found = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if any(not 1 <= n <= 64 for n in found):
        raise argparse.ArgumentTypeError(f"expected numbers from 1 to 64, found {text!r}")
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folders", nargs="+", metavar="FOLDER", help="speculators of one model")
    add("-m", "--model", default="smollm2", help="a pulled model's name, or a path")
    add("--prompts", required=True, metavar="FILE", help="questions in JSON, one per line")
    add("--n-per-task", type=int, default=10, help="questions per task, evenly spaced")
    add("--prompt-len", type=int, default=1024, help="tokens of a question at most")
    add("-n", "--n-predict", type=int, default=128, help="tokens to generate at most")
    add("--temp", type=float, default=0.0, help="temperature; 0 is greedy")
    add("-s", "--seed", type=int, default=1)
    add("-t", "--threads", type=int, help="threads to compute with")
    add("--nodes", type=numbers, default=[4, 7], metavar="N,...", help="of the trees")
    add("--by-task", action="store_true", help="a row for each task, too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    sampling = SamplingParams(temperature=given.temp, seed=given.seed)
    with pyflow.load(given.model, n_threads=given.threads) as model:
        answers: list[Written] = []
        for task, found in questions.read(given.prompts).items():
            for question in questions.choose(found, given.n_per_task):
                prompt = questions.tokens(model, question, given.prompt_len)
                answers.append(write(model, prompt, task, given.n_predict, sampling))
        n_tokens = sum(len(each.tokens) for each in answers)
        print(f"{len(answers)} answers, {n_tokens} tokens\n")
        print("| speculator | MB | answers | chain |", *(f"tree of {n} |" for n in given.nodes))
        print("| --- | --- | --- | --- |", *("--- |" for _ in given.nodes))
        tasks = {each.task: None for each in answers} if given.by_task else {}
        for folder in map(Path, given.folders):
            heads = files.load(folder, model).heads
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
            for task in (None, *tasks):
                chosen = [each for each in answers if task in (None, each.task)]
                row: list[Any] = [folder.name, f"{size:.1f}", task or "all"]
                print("|", *(f"{cell} |" for cell in row), end=" ")
                print(*(f"{rate:.3f} |" for rate in rates(heads, chosen, given.nodes)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
