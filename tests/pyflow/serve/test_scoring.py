"""Likelihoods and embeddings over HTTP are those of the model, for whatever else is in a request.

The requests are those of lm-eval's local-completions (lm_eval 0.4.13, models/api_models.py).
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from pyflow.model import Model

from .conftest import Server

TEXTS = ["The capital of France is Paris", "caf\u00e9 \U0001f600!", "One two three four five six"]


def score(model: Model, ids: list[int]) -> list[float]:
    with model.context(256) as context:
        found: list[float] = context.score(ids).tolist()
        return found


def ask(server: Server, prompts: Any, **more: Any) -> list[Any]:
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234, **more}
    choices: list[Any] = server.post("/v1/completions", prompt=prompts, **body)["choices"]
    return sorted(choices, key=lambda choice: choice["index"])


def test_the_probe_of_lm_eval_is_answered(server: Server, smollm2: Model) -> None:
    info = server.get("/tokenizer_info")
    assert {"eos_token", "bos_token", "pad_token", "chat_template"} <= info.keys()
    found = server.post("/tokenize", prompt="test", add_special_tokens=False)
    assert found["tokens"] == smollm2.tokenizer.encode("test", add_special=False)


@pytest.mark.parametrize("n_at_once", [1, 8])
def test_loglikelihoods_are_the_models(server: Server, smollm2: Model, n_at_once: int) -> None:
    prompts = [smollm2.tokenizer.encode(text) for text in TEXTS]
    prompts.append([*prompts[0], 2, 0, 1])  # control tokens are tokens like others
    batches = [prompts[i : i + n_at_once] for i in range(0, len(prompts), n_at_once)]
    choices = [choice for batch in batches for choice in ask(server, batch)]
    for prompt, choice in zip(prompts, choices, strict=True):
        report, n = choice["logprobs"], len(prompt)
        # lm-eval leaves the last one out: it is the token that was drawn.
        found = report["token_logprobs"][1:-1]
        assert len(report["tokens"]) == n + 1
        np.testing.assert_allclose(found, score(smollm2, prompt), rtol=0, atol=2e-8)
        logits = smollm2.logits(prompt)
        for i in range(1, n):
            is_greedy = int(logits[i - 1].argmax()) == prompt[i]
            top = report["top_logprobs"][i]
            assert (report["token_logprobs"][i] == max(top.values())) == is_greedy
        assert (report["token_logprobs"][0], report["top_logprobs"][0]) == (None, None)
        assert report["text_offset"] == sorted(report["text_offset"])


def test_nothing_is_drawn_if_nothing_is_asked_for(server: Server, smollm2: Model) -> None:
    (choice,) = ask(server, TEXTS[0], max_tokens=0)
    assert choice["text"] == TEXTS[0]
    ids = smollm2.tokenizer.encode(TEXTS[0])
    np.testing.assert_allclose(
        choice["logprobs"]["token_logprobs"][1:], score(smollm2, ids), rtol=0, atol=2e-8
    )
    ends = [*choice["logprobs"]["text_offset"][1:], len(TEXTS[0])]
    spans = zip(choice["logprobs"]["text_offset"], ends, strict=True)
    assert [TEXTS[0][a:b] for a, b in spans] == choice["logprobs"]["tokens"]


def test_a_drawn_end_has_an_entry(server: Server) -> None:
    (choice,) = ask(server, TEXTS[0], logit_bias={"2": 1000})
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"][-1] == "<|im_end|>"


def test_embeddings_have_length_one_in_any_form(server: Server) -> None:
    whole = server.post("/v1/embeddings", input=TEXTS)["data"]
    again = server.post("/v1/embeddings", input=TEXTS[1], encoding_format="base64")["data"]
    vector = np.frombuffer(base64.b64decode(again[0]["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, np.float32(whole[1]["embedding"]))
    assert [entry["index"] for entry in whole] == [0, 1, 2]
    for entry in whole:
        np.testing.assert_allclose(np.linalg.norm(entry["embedding"]), 1, rtol=1e-6)
    cut = server.post("/v1/embeddings", input=TEXTS[1], dimensions=8)["data"][0]["embedding"]
    np.testing.assert_allclose(cut, vector[:8] / np.linalg.norm(vector[:8]), rtol=1e-5)
    mean = server.post("/v1/embeddings", input=TEXTS[1], pooling="mean")["data"][0]["embedding"]
    assert not np.allclose(mean, vector)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [[1, 2]]}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": "a", "dimensions": 577}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
    ],
    ids=str,
)
def test_embeddings_refuse_by_name(server: Server, body: dict[str, Any], param: str) -> None:
    status, error = server.error("/v1/embeddings", **body)
    assert (status, error["param"]) == (400, param)
