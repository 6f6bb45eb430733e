"""Answers over HTTP keep to schemas, grammars and tools, and what cannot be kept is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pyflow.model import Model

from .conftest import Server, template_with_tools

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Where is the Eiffel Tower?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
NAMED = {"type": "function", "function": {"name": "find"}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}


def content(server: Server, **body: Any) -> str:
    found = server.post(CHAT, messages=MESSAGES, max_tokens=60, seed=3, **body)["choices"][0]
    assert found["finish_reason"] == "stop"
    text: str = found["message"]["content"]
    return text


def test_answers_keep_to_a_schema(server: Server) -> None:
    place = json.loads(content(server, response_format=FORMAT))
    assert place["city"] in ("Paris", "Rome")
    assert place.keys() == {"city", "sure"}
    assert json.loads(content(server, structured_outputs={"json": SCHEMA})).keys() == place.keys()
    responses = server.post(
        "/v1/responses", input="Where?", text={"format": {"type": "json_schema", "schema": SCHEMA}}
    )
    assert json.loads(responses["output"][0]["content"][0]["text"]).keys() == place.keys()


def test_choices_of_one_request_keep_to_it_each(server: Server) -> None:
    body = {"response_format": FORMAT, "n": 3, "seed": 2, "max_tokens": 60}
    for choice in server.post(CHAT, messages=MESSAGES, **body)["choices"]:
        assert json.loads(choice["message"]["content"]).keys() == {"city", "sure"}


def test_answers_keep_to_grammars(server: Server) -> None:
    assert content(server, grammar='root ::= "yes" | "no"') in ("yes", "no")
    assert content(server, structured_outputs={"choice": ["Oslo", "Rome"]}) in ("Oslo", "Rome")
    assert re.fullmatch("[a-c]{3}", content(server, structured_outputs={"regex": "[a-c]{3}"}))
    lark = {"lark": 'start: "x" /[0-9]/'}
    assert re.fullmatch("x[0-9]", content(server, structured_outputs=lark))
    text = server.post("/v1/completions", prompt="It is", grammar='root ::= "yes" | "no"')
    assert text["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format"),
        (
            {"response_format": {**FORMAT, "json_schema": {"schema": {"minLenght": 1}}}},
            "response_format",
        ),
        ({"grammar": "root = 1"}, "grammar"),
        ({"grammar": 'root ::= ("a" | .){9000} root?'}, "grammar"),
        ({"structured_outputs": {"lark": "start: start"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"response_format": FORMAT, "grammar": 'root ::= "a"'}, "response_format"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"tools": [TOOL]}, "tools"),  # this template knows none
        ({"tool_choice": "required"}, "tool_choice"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused(server: Server, body: dict[str, Any], param: str) -> None:
    status, error = server.error(CHAT, messages=MESSAGES, **body)
    assert (status, error["param"]) == (400, param)


@pytest.fixture
def with_tools(smollm2: Model) -> Iterator[None]:
    with template_with_tools(smollm2):
        yield


@pytest.mark.usefixtures("with_tools")
class TestTools:
    def check(self, calls: list[Any]) -> None:
        assert calls
        for call in calls:
            assert (call["type"], call["function"]["name"]) == ("function", "find")
            assert json.loads(call["function"]["arguments"]).keys() == {"city", "sure"}

    @pytest.mark.parametrize(
        "choice", ["required", {"type": "function", "function": {"name": "find"}}]
    )
    def test_required_tools_are_called(self, server: Server, choice: Any) -> None:
        body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "seed": 1}
        body["parallel_tool_calls"] = False
        found = server.post(CHAT, **body, max_tokens=150)["choices"][0]
        self.check(found["message"]["tool_calls"])
        assert (len(found["message"]["tool_calls"]), found["message"]["content"]) == (1, None)
        *frames, _ = server.stream(CHAT, **body, max_tokens=150)
        deltas = [frame["choices"][0]["delta"] for frame in frames]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        self.check(calls)
        assert [call["index"] for call in calls] == [0]
        assert calls[0]["function"] == found["message"]["tool_calls"][0]["function"]
        assert frames[-1]["choices"][0]["finish_reason"] == found["finish_reason"]

    def test_other_apis_have_calls_too(self, server: Server) -> None:
        flat = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
        body: dict[str, Any] = {"seed": 1, "parallel_tool_calls": False}
        found = server.post(
            "/v1/responses", input="Where?", tools=[flat], tool_choice="required", **body
        )
        (item,) = found["output"]
        assert (item["type"], item["name"]) == ("function_call", "find")
        tool = {"name": "find", "input_schema": SCHEMA}
        choice = {"type": "tool", "name": "find", "disable_parallel_tool_use": True}
        asked = {"messages": MESSAGES, "tools": [tool], "tool_choice": choice, "max_tokens": 150}
        (block,) = server.post("/v1/messages", **asked, seed=1)["content"]
        assert (block["type"], block["name"]) == ("tool_use", "find")
        assert block["input"].keys() == {"city", "sure"}

    def test_text_stays_text(self, server: Server) -> None:
        body = {"messages": MESSAGES, "tools": [TOOL], "max_tokens": 5, "temperature": 0}
        message = server.post(CHAT, **body)["choices"][0]["message"]
        assert message.keys() == {"role", "content"}

    def test_earlier_calls_are_shown_to_the_model(self, server: Server) -> None:
        called = {"id": "a", "function": {"name": "find", "arguments": '{"city": "Rome"}'}}
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "a", "content": "in Paris"},
        ]
        prompt = server.post("/apply-template", messages=messages)["prompt"]
        assert "Rome<|im_end|>" in prompt
        assert "<|im_start|>tool\nin Paris" in prompt
        called["function"] = {"name": "find", "arguments": "{"}
        assert server.error(CHAT, messages=messages)[0] == 400

    @pytest.mark.parametrize(
        "tools",
        [
            [TOOL, TOOL],
            [{"type": "function", "function": {"name": "a b"}}],
            [{"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}],
            [{"type": "web_search"}],
        ],
        ids=str,
    )
    def test_tools_that_cannot_be_held_to_are_refused(self, server: Server, tools: Any) -> None:
        status, error = server.error(CHAT, messages=MESSAGES, tools=tools)
        assert (status, error["param"]) == (400, "tools")
