"""Teacher-forced on llama.cpp's own greedy continuations, pyflow chooses the same next token.

Wherever llama.cpp was sure: where its token is more than half a logit above every other. In one
place of 2,582 pyflow does not follow, and the test names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent / "golden"
SURE = 0.5

# Alone at the start of a text, this token has a few activations thousands of times as large as the
# others. Unrounded arithmetic (golden/exact_model.py) says 16 with 7.86, then 13 with 7.65, and has
# 15 not among the first five; pyflow says 16 with 9.35, then 13 with 8.98; llama.cpp, which rounds
# 256 activations by one scale, says 15 with 14.39, then 16 with 13.32.
LLAMA_CPP_ROUNDS_AWAY = {"qwen2.5-coder-1.5b": ["one token, token 0: expected 15, found 16"]}

MODELS = [
    pytest.param("smollm2", marks=pytest.mark.quick),
    "gemma3",
    pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.accept),
]


def read(name: str) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((GOLDEN / f"continuations_{name}.json").read_text())
    return golden


def margins(prompt: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How far llama.cpp's token was above every other at each position, in logits."""
    return np.subtract(prompt["token_logits"], prompt["second_logits"])


@pytest.mark.parametrize("name", ["smollm2", "gemma3", "qwen2.5-coder-1.5b"])
def test_the_golden_continuations_are_many_and_mostly_sure(name: str) -> None:
    prompts = read(name)["prompts"]
    sure = np.concatenate([margins(prompt) > SURE for prompt in prompts])
    assert len(prompts) >= 20
    assert len(sure) == 48 * len(prompts)
    assert sure.mean() > 0.7


@pytest.mark.parametrize("name", MODELS)
def test_the_next_token_is_llama_cpps_wherever_it_was_sure(
    model_path: Callable[[str], Path], name: str
) -> None:
    wrong = []
    with pyflow.load(model_path(name), n_threads=2) as model:
        for prompt in read(name)["prompts"]:
            ids, tokens = np.array(prompt["ids"]), np.array(prompt["tokens"])
            # The prompt goes in as a prompt and the rest as generated tokens, as in real use.
            with model.context(n_ctx=len(ids) + len(tokens)) as context:
                head = context.forward(ids, regime="prefill")
                tail = context.forward(tokens[:-1], logits="all", regime="decode")
            chosen = np.concatenate([head, tail]).argmax(axis=1)
            for i in np.flatnonzero((chosen != tokens) & (margins(prompt) > SURE)):
                wrong.append(
                    f"{prompt['name']}, token {i}: expected {tokens[i]}, found {chosen[i]}"
                )
    assert wrong == LLAMA_CPP_ROUNDS_AWAY.get(name, [])


@pytest.mark.parametrize("name", MODELS)
def test_the_prompts_tokenize_as_llama_cpp_does(
    tokenizer_of: Callable[[str], Tokenizer], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    for prompt in read(name)["prompts"]:
        ids = tokenizer.encode(prompt["text"], add_special=True, parse_special=prompt["special"])
        assert list(ids) == prompt["ids"], prompt["name"]
