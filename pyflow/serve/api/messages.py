"""/v1/messages, Anthropic's API, as a converter to chat."""

from __future__ import annotations

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
    ToolChoice,
)
from pyflow.serve.api.conversation import Called, CallMade, Message, encode, text_of
from pyflow.serve.api.sampling import Count, Drawn
from pyflow.serve.api.writing import Writing, call_of, finish_reason, n_cached, n_generated
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import ApiError, bad_request
from pyflow.serve.http.replies import PING, EventStream, Reply, frame

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


class Turn(msgspec.Struct):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]

    def messages(self, index: int) -> list[Message]:
        """As chat has it: results of tools stand before the text. ApiError: it is no text."""
        if isinstance(self.content, str):
            return [Message(role=self.role, content=self.content)]
        where = f"messages[{index}].content"
        texts, calls, results = [], [], []
        for block in self.content:
            match block.get("type"):
                case "tool_use":
                    arguments = msgspec.json.encode(block.get("input") or {}).decode()
                    called = Called(str(block.get("name", "")), arguments)
                    calls.append(CallMade(called, str(block.get("id", ""))))
                case "tool_result":
                    text = _text(block.get("content") or "", where)
                    name = str(block.get("tool_use_id", ""))
                    results.append(Message(role="tool", content=text, tool_call_id=name))
                case "thinking" | "redacted_thinking":
                    pass
                case _:
                    texts.append(block)
        rest = Message(role=self.role, content=text_of(texts, where), tool_calls=calls or None)
        return [*results, rest] if texts or calls or not results else results


def _text(content: object, where: str) -> str:
    if not isinstance(content, (str, list)):
        raise bad_request(f"{where}: expected text, found {content!r:.40}", "messages")
    return text_of(content, where)


class UsableTool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str = ""


class UseChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """What the answer is held to; an effort makes no difference."""

    format: OutputFormat | None = None


class CountBody(Drawn, kw_only=True):
    """The request of /v1/messages/count_tokens."""

    messages: list[Turn]
    system: str | list[dict[str, Any]] = ""
    tools: list[UsableTool] = msgspec.field(default_factory=list)
    tool_choice: UseChoice | None = None
    output_config: OutputConfig = msgspec.field(default_factory=OutputConfig)

    harmless: ClassVar[frozenset[str]] = Drawn.harmless | {"thinking", "betas"}
    refused: ClassVar[dict[str, str]] = {
        "mcp_servers": "nothing is fetched",
        "container": "leave it out",
        "output_format": "write output_config",
    }

    def as_chat(self, **more: Any) -> chat.ChatBody:
        """The same request to chat. ApiError: a turn is no text."""
        messages = [found for i, turn in enumerate(self.messages) for found in turn.messages(i)]
        if system := text_of(self.system, "system"):
            messages.insert(0, Message(role="system", content=system))
        wanted, form = self.tool_choice or UseChoice("auto"), self.output_config.format
        held = None if form is None else ResponseFormat("json_schema", JsonSchema(form.schema))
        return chat.ChatBody(
            **self.as_drawn(),
            **more,
            messages=messages,
            response_format=held,
            tools=[
                Tool("function", Function(t.name, t.description, t.input_schema))
                for t in self.tools
            ],
            tool_choice=Choice("function", Named(wanted.name))
            if wanted.type == "tool"
            else _CHOICES[wanted.type],
            parallel_tool_calls=not wanted.disable_parallel_tool_use,
        )


class MessagesBody(CountBody, kw_only=True):
    """The request of /v1/messages."""

    max_tokens: Count
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    stream: bool = False


async def count_tokens(call: Call[CountBody]) -> Reply:
    body, state = call.body.as_chat(), call.state
    served = call.served
    tokens = await state.preparing.run(
        lambda: encode(served, body.messages, body.chat_template_kwargs, body.called)
    )
    return Reply.of_json({"input_tokens": len(tokens)})


async def answer(call: Call[MessagesBody]) -> Reply | EventStream:
    body = call.body
    as_chat = body.as_chat(max_tokens=body.max_tokens, stop=body.stop_sequences, stream=body.stream)
    writing = await chat.plan(call, as_chat)
    if body.stream:
        return EventStream(_frames(writing), call.state.settings.send_s, _failed)
    (done,) = await writing.served.answered(writing.requests)
    text, calls = writing.split(done)
    content: list[object] = [{"type": "text", "text": text}] if text or not calls else []
    content += [_use(each, msgspec.json.decode(each.arguments)) for each in calls]
    return Reply.of_json(
        {
            **_head(writing),
            "content": content,
            **_stopped(writing, done, calls),
            "usage": _usage(done),
        }
    )


def _failed(error: ApiError) -> bytes:
    return frame(error.anthropic(), "error")


def _head(writing: Writing) -> dict[str, object]:
    return {
        "id": writing.head["id"],
        "type": "message",
        "role": "assistant",
        "model": writing.served.name,
        "seed": writing.head["seed"],
        "system_fingerprint": writing.head["system_fingerprint"],
    }


def _usage(done: Completion) -> dict[str, int]:
    cached = n_cached(done)
    return {
        "input_tokens": len(done.prompt_tokens) - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": n_generated(done),
    }


def _stopped(
    writing: Writing, done: Completion, calls: Sequence[ToolCall]
) -> dict[str, str | None]:
    stops = writing.requests[0].stop
    if done.stop_reason == "stop":
        # Which of several texts it was is not known.
        return {
            "stop_reason": "stop_sequence",
            "stop_sequence": stops[0] if len(stops) == 1 else None,
        }
    reason = _REASONS[finish_reason(done, bool(calls))]
    return {"stop_reason": reason, "stop_sequence": None}


def _use(call: ToolCall, given: object) -> dict[str, object]:
    return {"type": "tool_use", "id": call_of(call)["id"], "name": call.name, "input": given}


def _event(name: str, **fields: object) -> bytes:
    return frame({"type": name, **fields}, name)


async def _frames(writing: Writing) -> AsyncGenerator[bytes, None]:
    blocks = _Blocks()
    started = False
    async with writing.served.job(writing.requests) as job:
        async for parts in writing.parts(job):
            if not parts:
                yield _event("ping") if started else PING
                continue
            if not started:
                started = True
                usage = {"input_tokens": len(writing.requests[0].view.tokens), "output_tokens": 0}
                head = {**_head(writing), "content": [], "stop_reason": None, "usage": usage}
                yield _event("message_start", message={**head, "stop_sequence": None})
            (part,) = parts
            for data in (*blocks.text(part.text), *blocks.calls(part.calls)):
                yield data
            if part.completion is not None:
                for data in blocks.close():
                    yield data
                stopped = _stopped(writing, part.completion, blocks.made)
                yield _event("message_delta", delta=stopped, usage=_usage(part.completion))
                yield _event("message_stop")


class _Blocks:
    """Blocks of a message: text, and calls."""

    def __init__(self) -> None:
        self.made: list[ToolCall] = []
        self._index = -1
        self._is_open = False

    def text(self, text: str) -> list[bytes]:
        """More text, in a block of its own."""
        if not text:
            return []
        found = [] if self._is_open else [self._start({"type": "text", "text": ""})]
        self._is_open = True
        return [*found, self._delta({"type": "text_delta", "text": text})]

    def calls(self, calls: Sequence[ToolCall]) -> list[bytes]:
        """Calls, which are complete."""
        found = []
        for call in calls:
            self.made.append(call)
            found += self.close()
            found.append(self._start(_use(call, {})))
            found.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
            self._is_open = True
            found += self.close()
        return found

    def close(self) -> list[bytes]:
        if not self._is_open:
            return []
        self._is_open = False
        return [_event("content_block_stop", index=self._index)]

    def _start(self, block: object) -> bytes:
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: object) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)
