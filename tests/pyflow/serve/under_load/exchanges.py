"""Requests of every kind, drawn by a seed, and what the model says to them directly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pyflow.constrain import Constraint
from pyflow.model import Model
from pyflow.sampling import SamplingParams

N_CTX = 192
WORDS = ["one", "two", "red", "Paris", "Rome", "café", "你好", "😀", "and", "1", "2", ","]
BEGINNINGS = ["", "Once upon a time there was", "1, 2, 3, 1, 2, 3, 1, 2,", " ".join(WORDS * 3)]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    path: str
    body: dict[str, Any]

    def texts(self, model: Model) -> list[str] | None:
        """What the model writes by itself; None where the answer has more than texts."""
        body = self.body
        if self.path == CHAT:
            assert model.chat_template is not None
            prompts = [model.chat_template.encode(body["messages"])]
        elif self.path == COMPLETIONS and not body.get("echo"):
            given = body["prompt"]
            prompts = [model.tokenizer.encode(text) for text in given]
        else:
            return None
        names = {each.name for each in fields(SamplingParams)} - {"logit_bias"}
        how: dict[str, Any] = {name: body[name] for name in names if name in body}
        how["logit_bias"] = {int(key): bias for key, bias in body.get("logit_bias", {}).items()}
        options: dict[str, Any] = {
            "sampling": replace(model.defaults.sampling, **how),
            "n_predict": body["max_tokens"],
            "stop": body.get("stop", ()),
            "n_ctx": N_CTX,
        }
        if "response_format" in body:
            options["constraint"] = Constraint.json_schema(SCHEMA)
        found = [model.generate([ids] * body.get("n", 1), **options) for ids in prompts]
        return [each.text for group in found for each in group]


def requests(n: int, seed: int) -> list[Asked]:
    """Of every kind in turn."""
    rng = random.Random(seed)
    makers = [_chat, _completion, _echo, _chat, _completion, _embedding, _message, _response]
    return [makers[i % len(makers)](rng) for i in range(n)]


def _text(rng: random.Random) -> str:
    return " ".join([rng.choice(BEGINNINGS), *rng.choices(WORDS, k=rng.randint(1, 16))])


def _drawn(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "smollm2", "seed": rng.getrandbits(31)}
    body["temperature"] = rng.choice([0, 0, 0.7, 1.5])
    extras: Sequence[tuple[str, Any]] = [
        ("top_k", 5),
        ("min_p", 0.05),
        ("repeat_penalty", 1.3),
        (rng.choice(["mirostat", "fsd"]), 2),
        ("dry_multiplier", 0.8),
        ("banned_strings", [" the", "s "]),
        ("logit_bias", {"28": -2.5, "30": 3}),
    ]
    return {**body, **dict(rng.sample(extras, rng.choice([0, 0, 1, 2])))}


def _written(rng: random.Random) -> dict[str, Any]:
    """What chat and completions have in common."""
    body = {**_drawn(rng), "max_tokens": rng.randint(1, 20), "n": rng.choice([1, 1, 3])}
    if rng.random() < 0.3:
        body["stop"] = rng.sample(["e", " t", ".", "\n", "aris"], 2)
    if rng.random() < 0.2:
        body["max_tokens"] = 30
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    if rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _messages(rng: random.Random) -> list[dict[str, str]]:
    turns = [{"role": "user", "content": _text(rng)}]
    if rng.random() < 0.3:
        turns += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
    return turns


def _chat(rng: random.Random) -> Asked:
    body = {**_written(rng), "messages": _messages(rng)}
    if rng.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 3)}
    return Asked(CHAT, body)


def _completion(rng: random.Random) -> Asked:
    body = {**_written(rng), "prompt": [_text(rng) for _ in range(rng.choice([1, 1, 2]))]}
    if rng.random() < 0.4:
        body["logprobs"] = rng.randint(1, 3)
    return Asked(COMPLETIONS, body)


def _echo(rng: random.Random) -> Asked:
    prompts = [_text(rng) for _ in range(rng.choice([1, 3]))]
    more = {"echo": True, "logprobs": rng.randint(1, 3), "max_tokens": rng.randint(0, 2)}
    return Asked(COMPLETIONS, {**_drawn(rng), **more, "prompt": prompts})


def _embedding(rng: random.Random) -> Asked:
    body: dict[str, Any] = {"model": "smollm2", "input": [_text(rng), _text(rng)]}
    body["pooling"] = rng.choice(["last", "mean"])
    body["encoding_format"] = rng.choice(["float", "base64"])
    return Asked("/v1/embeddings", body)


def _message(rng: random.Random) -> Asked:
    more = {"max_tokens": rng.randint(1, 20), "stream": rng.random() < 0.5}
    return Asked("/v1/messages", {**_drawn(rng), **more, "messages": _messages(rng)})


def _response(rng: random.Random) -> Asked:
    more = {"max_output_tokens": rng.randint(1, 20), "stream": rng.random() < 0.5}
    return Asked("/v1/responses", {**_drawn(rng), **more, "input": _text(rng)})
