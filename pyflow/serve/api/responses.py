"""/v1/responses, as a converter to chat: nothing is kept from one request to the next."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from pyflow.batch.completion import Completion
from pyflow.chat.tools import ToolCall
from pyflow.serve.api import chat
from pyflow.serve.api.constraints import (
    Choice,
    Function,
    JsonSchema,
    Named,
    ResponseFormat,
    Tool,
)
from pyflow.serve.api.conversation import Called, CallMade, Message, text_of
from pyflow.serve.api.sampling import Count, Drawn
from pyflow.serve.api.writing import Writing, call_of, finish_reason, n_cached, n_generated
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import ApiError, bad_request
from pyflow.serve.http.replies import PING, EventStream, Reply, frame

_STATELESS = "send the whole conversation as input"


class Item(msgspec.Struct, kw_only=True):
    """One part of the conversation so far."""

    type: str = "message"
    role: str = "user"
    content: str | list[dict[str, Any]] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[dict[str, Any]] = ""

    def message(self, index: int) -> Message | None:
        """As chat has it. ApiError: it is no text."""
        where = f"input[{index}]"
        match self.type:
            case "message":
                return Message(role=self.role, content=text_of(self.content, where))
            case "function_call":
                made = CallMade(Called(self.name, self.arguments), self.call_id)
                return Message(role="assistant", tool_calls=[made])
            case "function_call_output":
                text = text_of(self.output, where)
                return Message(role="tool", content=text, tool_call_id=self.call_id)
            case "reasoning":
                return None
        raise bad_request(
            f"{where}.type: expected message, function_call or function_call_output, "
            f"found {self.type!r:.40}",
            "input",
        )


class Format(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None


class Text(msgspec.Struct, kw_only=True):
    format: Format = msgspec.field(default_factory=Format)
    verbosity: str | None = None


class FunctionTool(Function, kw_only=True):
    """A tool, flat as this API has it."""

    type: Literal["function"]


class NamedTool(msgspec.Struct):
    type: Literal["function"]
    name: str


class ResponseBody(Drawn, kw_only=True):
    """The request of /v1/responses."""

    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stream: bool = False
    text: Text = msgspec.field(default_factory=Text)
    tools: list[FunctionTool] = msgspec.field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    truncation: Literal["disabled"] = "disabled"

    harmless: ClassVar[frozenset[str]] = Drawn.harmless | {
        "include",
        "reasoning",
        "stream_options",
        "top_logprobs",
    }
    refused: ClassVar[dict[str, str]] = {
        "previous_response_id": _STATELESS,
        "conversation": _STATELESS,
        "background": "wait for the answer",
        "prompt": "send its text as input",
    }

    def as_chat(self) -> chat.ChatBody:
        """The same request to chat. ApiError: a part of the input is no text."""
        given = [Item(content=self.input)] if isinstance(self.input, str) else self.input
        messages = [found for i, item in enumerate(given) if (found := item.message(i))]
        if self.instructions:
            messages.insert(0, Message(role="system", content=self.instructions))
        form = self.text.format
        schema = None if form.schema is None else JsonSchema(form.schema)
        choice = self.tool_choice
        return chat.ChatBody(
            **self.as_drawn(),
            messages=messages,
            max_tokens=self.max_output_tokens,
            stream=self.stream,
            response_format=ResponseFormat(form.type, schema),
            tools=[_tool(each) for each in self.tools],
            tool_choice=Choice("function", Named(choice.name))
            if isinstance(choice, NamedTool)
            else choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )


def _tool(given: FunctionTool) -> Tool:
    function = Function(given.name, given.description, given.parameters, given.strict)
    return Tool("function", function)


async def answer(call: Call[ResponseBody]) -> Reply | EventStream:
    body = call.body
    try:
        writing = await chat.plan(call, body.as_chat())
    except ApiError as error:
        error.param = {"messages": "input", "response_format": "text"}.get(
            error.param or "", error.param
        )
        raise
    if body.stream:
        return EventStream(_frames(writing, body), call.state.settings.send_s, _failed)
    (done,) = await writing.served.answered(writing.requests)
    text, calls = writing.split(done)
    output = [_message(text)] if text or not calls else []
    return Reply.of_json(_response(writing, body, [*output, *map(_call, calls)], done))


def _failed(error: ApiError) -> bytes:
    return frame({"type": "error", **error.openai()}, "error")


def _response(
    writing: Writing,
    body: ResponseBody,
    output: Sequence[object],
    done: Completion | None = None,
) -> dict[str, object]:
    """The object of this API; without a completion it has just begun."""
    status, usage = "in_progress", None
    if done is not None:
        status = "incomplete" if finish_reason(done) == "length" else "completed"
        n_prompt, n_drawn = len(done.prompt_tokens), n_generated(done)
        usage = {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": n_cached(done)},
            "output_tokens": n_drawn,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_prompt + n_drawn,
        }
    head = {name: value for name, value in writing.head.items() if name != "created"}
    return {
        **head,
        "object": "response",
        "created_at": writing.head["created"],
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "store": False,
        "temperature": writing.requests[0].sampling.temperature,
        "text": {"format": {"type": body.text.format.type}},
        "tool_choice": body.tool_choice,
        "tools": body.tools,
        "top_p": writing.requests[0].sampling.top_p,
        "truncation": body.truncation,
        "usage": usage,
    }


def _message(text: str, name: str = "", status: str = "completed") -> dict[str, Any]:
    return {
        "type": "message",
        "id": name or f"msg-{secrets.token_hex(12)}",
        "status": status,
        "role": "assistant",
        "content": [_part(text)] if status == "completed" else [],
    }


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc-{secrets.token_hex(12)}",
        "call_id": call_of(call)["id"],
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


async def _frames(writing: Writing, body: ResponseBody) -> AsyncGenerator[bytes, None]:
    events = _Events()
    async with writing.served.job(writing.requests) as job:
        async for parts in writing.parts(job):
            if not parts:
                yield PING
                continue
            if events.is_new:
                for name in ("created", "in_progress"):
                    yield events.frame(f"response.{name}", response=_response(writing, body, []))
            (part,) = parts
            for data in events.text(part.text):
                yield data
            for call in part.calls:
                for data in events.call(call):
                    yield data
            if part.completion is not None:
                for data in events.close():
                    yield data
                whole = _response(writing, body, events.output, part.completion)
                yield events.frame(f"response.{whole['status']}", response=whole)


class _Events:
    """Numbers the events, and knows which item of the output is open."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
        self._numbers = itertools.count()
        self._text: list[str] | None = None
        self.is_new = True

    def frame(self, event: str, **fields: object) -> bytes:
        self.is_new = False
        value = {"type": event, "sequence_number": next(self._numbers), **fields}
        return frame(value, event)

    def text(self, text: str) -> list[bytes]:
        """More text, in an item of its own."""
        if not text:
            return []
        found = []
        if self._text is None:
            self._text = []
            self.output.append(_message("", status="in_progress"))
            found = [
                self._item("added"),
                self._in_text("content_part.added", part=_part("")),
            ]
        self._text.append(text)
        return [*found, self._in_text("output_text.delta", delta=text, logprobs=[])]

    def call(self, call: ToolCall) -> list[bytes]:
        """A call, which is complete."""
        found = self.close()
        item = _call(call)
        self.output.append({**item, "arguments": "", "status": "in_progress"})
        where = {"item_id": item["id"], "output_index": len(self.output) - 1}
        name = "response.function_call_arguments"
        found.append(self._item("added"))
        found.append(self.frame(f"{name}.delta", **where, delta=call.arguments))
        found.append(self.frame(f"{name}.done", **where, name=call.name, arguments=call.arguments))
        self.output[-1] = item
        return [*found, self._item("done")]

    def close(self) -> list[bytes]:
        """Ends the item that has text, if one is open."""
        if self._text is None:
            return []
        text, self._text = "".join(self._text), None
        found = [
            self._in_text("output_text.done", text=text, logprobs=[]),
            self._in_text("content_part.done", part=_part(text)),
        ]
        self.output[-1] = _message(text, self.output[-1]["id"])
        return [*found, self._item("done")]

    def _item(self, what: str) -> bytes:
        name = f"response.output_item.{what}"
        return self.frame(name, output_index=len(self.output) - 1, item=self.output[-1])

    def _in_text(self, name: str, **fields: object) -> bytes:
        return self.frame(
            f"response.{name}",
            item_id=self.output[-1]["id"],
            output_index=len(self.output) - 1,
            content_index=0,
            **fields,
        )
