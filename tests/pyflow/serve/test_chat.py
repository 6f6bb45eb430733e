"""Chat over HTTP: the text is that of the model alone, streamed or not; refusals name fields."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyflow.model import Model
from pyflow.sampling import SamplingParams

from .conftest import Server

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Name three rivers."}]
CASES: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"seed": 7, "max_tokens": 12, "n": 3, "logprobs": True, "top_logprobs": 2},
    {"seed": 1, "max_completion_tokens": 24, "stop": [" the", "\n"], "top_k": 5},
    {"seed": 5, "max_tokens": 8, "frequency_penalty": 0.5, "logit_bias": {"28": 2.5}},
    {
        **{"seed": 3, "max_tokens": 16, "n": 2, "mirostat": 2, "mirostat_tau": 3.0},
        **{"banned_strings": ["the", " R"], "dry_multiplier": 0.8, "typical_p": 0.9},
    },
]


def joined(frames: list[Any]) -> tuple[list[str], list[Any], list[str]]:
    """Texts, log-probabilities and reasons of the choices of a stream."""
    texts: dict[int, str] = defaultdict(str)
    logprobs: dict[int, list[Any]] = defaultdict(list)
    reasons: dict[int, str] = {}
    for frame in frames:
        for choice in frame["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            logprobs[choice["index"]] += (choice["logprobs"] or {"content": []})["content"]
            if choice["finish_reason"] is not None:
                reasons[choice["index"]] = choice["finish_reason"]
    order = sorted(texts)
    assert sorted(reasons) == order
    return [texts[i] for i in order], [logprobs[i] for i in order], [reasons[i] for i in order]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_streamed_equals_whole_equals_the_model_alone(
    server: Server, smollm2: Model, case: dict[str, Any]
) -> None:
    whole = server.post(CHAT, model="smollm2", messages=MESSAGES, **case)
    case = {**case, "seed": whole["seed"]}
    *frames, last, done = server.stream(
        CHAT, model="smollm2", messages=MESSAGES, stream_options={"include_usage": True}, **case
    )
    assert done == "[DONE]"
    choices = whole["choices"]
    reports = [(choice["logprobs"] or {"content": []})["content"] for choice in choices]
    assert joined(frames) == (
        [choice["message"]["content"] for choice in choices],
        reports,
        [choice["finish_reason"] for choice in choices],
    )
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][key] == whole["usage"][key]
    assert whole["system_fingerprint"] == last["system_fingerprint"]

    assert smollm2.chat_template is not None
    prompt = smollm2.chat_template.encode(MESSAGES)
    fields = {each.name for each in dataclasses.fields(SamplingParams)} - {"logit_bias"}
    sampling = SamplingParams(
        **{name: case[name] for name in fields if name in case},
        logit_bias={int(token): bias for token, bias in case.get("logit_bias", {}).items()},
        n_logprobs=case.get("top_logprobs", 0),
    )
    alone = smollm2.generate(
        [prompt] * case.get("n", 1),
        sampling=sampling,
        n_predict=case.get("max_tokens", 24),
        stop=case.get("stop", ()),
    )
    assert [each.text for each in alone] == [choice["message"]["content"] for choice in choices]
    if case.get("logprobs"):
        found = [[each.logprob for each in one.logprobs or ()] for one in alone]
        assert found == [[entry["logprob"] for entry in report] for report in reports]


def test_choices_begin_in_order_with_a_role(server: Server) -> None:
    frames = server.stream(CHAT, messages=MESSAGES, n=4, seed=2, max_tokens=3)
    roles = [
        choice["index"]
        for frame in frames[:-1]
        for choice in frame["choices"]
        if "role" in choice["delta"]
    ]
    assert roles == [0, 1, 2, 3]


def test_company_changes_nothing(server: Server) -> None:
    bodies = [{"messages": MESSAGES, "seed": i, "max_tokens": 6 + i} for i in range(6)]
    alone = [server.post(CHAT, **body)["choices"] for body in bodies]
    with ThreadPoolExecutor(6) as clients:
        together = list(clients.map(lambda body: server.post(CHAT, **body)["choices"], bodies))
    assert together == alone


def test_a_seed_is_drawn_and_repeats_the_answer(server: Server) -> None:
    first = server.post(CHAT, messages=MESSAGES, max_tokens=8)
    again = server.post(CHAT, messages=MESSAGES, max_tokens=8, seed=first["seed"])
    assert first["choices"] == again["choices"]


def test_parts_of_text_and_developers_are_plain_messages(server: Server) -> None:
    parts = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Name three rivers."}]},
    ]
    plain = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    given = [server.post(CHAT, messages=m, temperature=0, max_tokens=4) for m in (parts, plain)]
    assert given[0]["choices"] == given[1]["choices"]


def test_unknown_fields_are_named_and_harmless_ones_pass(server: Server) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "user": "me", "wibble": 1, "stop": None}
    status, headers, _ = server.request("POST", CHAT, body)
    assert (status, headers["x-pyflow-ignored"]) == (200, "wibble")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [{"role": "a b", "content": ""}]}, "messages"),
        ({"messages": MESSAGES, "max_tokens": 0}, "max_tokens"),
        ({"messages": MESSAGES, "max_tokens": "9"}, "max_tokens"),
        ({"messages": MESSAGES, "n": 17}, "n"),
        ({"messages": MESSAGES, "temperature": -1}, "temperature"),
        ({"messages": MESSAGES, "temperature": 1e308}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"messages": MESSAGES, "top_p": 1.5}, "top_p"),
        ({"messages": MESSAGES, "seed": 1 << 64}, "seed"),
        ({"messages": MESSAGES, "stop": [""]}, "stop"),
        ({"messages": MESSAGES, "stop": ["x"] * 17}, "stop"),
        ({"messages": MESSAGES, "logit_bias": {"49152": 1}}, "logit_bias"),
        ({"messages": MESSAGES, "banned_strings": ["a", ""]}, "banned_strings"),
        ({"messages": MESSAGES, "dry_sequence_breakers": ["x"] * 17}, "dry_sequence_breakers"),
        ({"messages": MESSAGES, "banned_tokens": [49152]}, "banned_tokens"),
        ({"messages": MESSAGES, "typical_p": 0}, "typical_p"),
        ({"messages": MESSAGES, "fsd": 1, "mirostat": 1}, "fsd"),
        ({"messages": MESSAGES, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_done_names_its_field(
    server: Server, body: dict[str, Any], param: str
) -> None:
    status, error = server.error(CHAT, **body)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_a_prompt_that_is_too_long_gives_both_numbers(server: Server) -> None:
    for n in (300, 1_000_000):  # the longer one is refused before it is read
        status, error = server.error(CHAT, messages=[{"role": "user", "content": "word " * n}])
        assert (status, error["code"], error["param"]) == (
            400,
            "context_length_exceeded",
            "messages",
        )
        assert "256" in error["message"]


def test_a_full_context_ends_by_length(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 190}], "logit_bias": {"2": -100}}
    found = server.post(CHAT, temperature=0, **body)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] == 257


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b"{", b'{"a":' * 5000, b"\xff"),
        *(b'{"messages": NaN}', b'{"messages": [], "temperature": 1e999}'),
    ],
)
def test_a_body_that_is_no_object_is_refused(server: Server, raw: bytes) -> None:
    assert server.request("POST", CHAT, raw)[0] == 400


def test_an_unknown_model_is_not_found(server: Server) -> None:
    status, error = server.error(CHAT, model="gpt-4", messages=MESSAGES)
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
