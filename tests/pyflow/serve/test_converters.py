"""The Responses and Messages APIs say what chat says, whole and in events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Server

ASKED = "Name three rivers."
DRAWN: dict[str, Any] = {"seed": 9, "temperature": 0.7}


@pytest.fixture(scope="module")
def chat_text(server: Server) -> str:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}]
    found = server.post("/v1/chat/completions", messages=messages, max_tokens=12, **DRAWN)
    text: str = found["choices"][0]["message"]["content"]
    return text


def events(server: Server, path: str, **body: Any) -> list[tuple[str, Any]]:
    """Names and data of a stream."""
    status, _, raw = server.request("POST", path, {**body, "stream": True})
    assert status == 200, raw
    found = []
    for block in raw.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


def test_responses(server: Server, chat_text: str) -> None:
    parts = [{"type": "input_text", "text": ASKED}]
    body: dict[str, Any] = {
        "input": [{"role": "user", "content": parts}],
        "instructions": "Be brief.",
        "max_output_tokens": 12,
        **DRAWN,
    }
    whole = server.post("/v1/responses", **body)
    (item,) = whole["output"]
    assert item["content"][0]["text"] == chat_text
    assert (whole["object"], whole["status"]) == ("response", "incomplete")
    found = events(server, "/v1/responses", **body)
    assert [data["sequence_number"] for _, data in found] == [*range(len(found))]
    names = [name.removeprefix("response.") for name, _ in found]
    n = names.count("output_text.delta")
    assert names == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * n,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert "".join(data.get("delta", "") for _, data in found) == chat_text
    last = found[-1][1]["response"]
    assert last["output"][0]["content"] == item["content"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 12


def test_messages(server: Server, chat_text: str) -> None:
    body: dict[str, Any] = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": ASKED}]}],
        "max_tokens": 12,
        **DRAWN,
    }
    whole = server.post("/v1/messages", **body)
    assert whole["content"] == [{"type": "text", "text": chat_text}]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == (
        "message",
        "assistant",
        "max_tokens",
    )
    found = events(server, "/v1/messages", **body)
    names = [name for name, _ in found]
    n = names.count("content_block_delta")
    assert names == [
        *("message_start", "content_block_start", *["content_block_delta"] * n),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    deltas = [data["delta"]["text"] for name, data in found if name == "content_block_delta"]
    assert "".join(deltas) == chat_text
    counted = {name: body[name] for name in ("system", "messages")}
    count = server.post("/v1/messages/count_tokens", **counted)["input_tokens"]
    usage = whole["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_stop_sequence_is_named(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 99}
    found = server.post("/v1/messages", **body, stop_sequences=["a"], temperature=0)
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "a")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": [{"type": "image"}]}, "input"),
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": "x", "temperature": "hot"}, "temperature"),
    ],
    ids=str,
)
def test_responses_refuse_by_name(server: Server, body: dict[str, Any], param: str) -> None:
    status, error = server.error("/v1/responses", **body)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1},
        {"messages": [], "max_tokens": 1},
        {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1},
    ],
    ids=str,
)
def test_messages_refuse_in_their_own_shape(server: Server, body: dict[str, Any]) -> None:
    status, _, raw = server.request("POST", "/v1/messages", body)
    found = json.loads(raw)
    assert (status, found["type"]) == (400, "error")
    assert found["error"]["type"] == "invalid_request_error"
