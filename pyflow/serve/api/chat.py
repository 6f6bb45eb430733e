"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import msgspec

from pyflow.batch.completion import Completion, TokenLogprobs
from pyflow.batch.request import Request, View
from pyflow.chat.tools import ToolCall
from pyflow.serve.api import constraints, logprobs
from pyflow.serve.api.constraints import ResponseFormat, Structured, Tool, ToolChoice
from pyflow.serve.api.conversation import Message, TemplateArguments, encode, text_of
from pyflow.serve.api.sampling import NOT_GUIDED, Count, NLogprobs, Sampled, copies
from pyflow.serve.api.writing import Parts, Writing, call_of, finish_reason
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.http.replies import DONE, PING, EventStream, Reply
from pyflow.serve.models import Held, Served

_CHUNK = "chat.completion.chunk"


class ChatBody(Sampled, kw_only=True):
    """The request of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: NLogprobs = 0
    chat_template_kwargs: TemplateArguments = msgspec.field(default_factory=TemplateArguments)
    response_format: ResponseFormat | None = None
    structured_outputs: Structured | None = None
    grammar: str | None = None
    tools: list[Tool] = msgspec.field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True

    refused: ClassVar[dict[str, str]] = {
        **NOT_GUIDED,
        "chat_template": "only the model's own template is used",
        "audio": "the model writes text",
        "documents": "put them into a message",
        "prediction": "leave it out",
        "web_search_options": "nothing is fetched",
        "functions": "write tools",
        "function_call": "write tool_choice",
    }

    @property
    def n_logprobs(self) -> int:
        """How many to report; with a drawn token comes at least one."""
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs: needs logprobs: true", "top_logprobs")
        return max(1, self.top_logprobs) if self.logprobs else 0

    @property
    def called(self) -> list[Tool]:
        """The tools that may be called."""
        if self.tool_choice not in ("none", "auto") and not self.tools:
            raise bad_request("tool_choice: needs tools", "tool_choice")
        return [] if self.tool_choice == "none" else self.tools

    def held(self, served: Served) -> Held | None:
        """What the answer is held to. ApiError: two things at once."""
        wanted = constraints.chosen(self.response_format, self.structured_outputs, self.grammar)
        if not self.called:
            return wanted
        if wanted is not None:
            raise bad_request("tools: an answer follows tools or a format, not both", "tools")
        form = constraints.format_of(served)
        many = self.parallel_tool_calls
        return constraints.of_tools(self.called, self.tool_choice, form, many=many)


async def plan(call: Call[Any], body: ChatBody) -> Writing:
    """The texts that a request asks for, which is the call's or made from it. ApiError: it cannot
    be done."""
    served = call.served
    sampling, stops = body.sampling(served, body.n_logprobs), body.stops

    def prepare() -> list[Request]:
        texts = [
            text_of(message.content, f"messages[{i}].content")
            for i, message in enumerate(body.messages)
        ]
        served.check_size(*texts, param="messages")
        tokens = encode(served, body.messages, body.chat_template_kwargs, body.called)
        served.check_tokens(tokens, param="messages")
        n_predict = body.max_completion_tokens or body.max_tokens
        request = Request(
            view=View(tokens),
            sampling=sampling,
            limit=served.n_ctx,
            n_predict=n_predict or served.model.defaults.n_predict,
            stop=stops,
            reuse=True,
            key=call.tenant,
            adapters=body.adapters(served),
            watched=body.stream,
        )
        return copies(request, body.n, matcher=served.matchers(body.held(served)))

    requests = await call.state.preparing.run(prepare)
    form = constraints.format_of(served) if body.called else None
    return Writing.of(served, body, requests, "chatcmpl", form, body.parallel_tool_calls)


async def answer(call: Call[ChatBody]) -> Reply | EventStream:
    body = call.body
    writing = await plan(call, body)
    if body.stream:
        return EventStream(_frames(writing, body), call.state.settings.send_s)
    done = await writing.served.answered(writing.requests)
    choices = [_choice(writing, body, i, completion) for i, completion in enumerate(done)]
    return Reply.of_json(writing.body("chat.completion", choices, done))


def _choice(
    writing: Writing, body: ChatBody, index: int, completion: Completion
) -> dict[str, object]:
    text, calls = writing.split(completion)
    message: dict[str, object] = {"role": "assistant", "content": text}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [call_of(call) for call in calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(writing, body, completion.logprobs or ()),
        "finish_reason": finish_reason(completion, bool(calls)),
    }


def _logprobs(
    writing: Writing, body: ChatBody, found: Sequence[TokenLogprobs]
) -> dict[str, list[dict[str, object]]] | None:
    if not body.logprobs:
        return None
    return logprobs.of_chat(writing.served.model.tokenizer, found, body.top_logprobs)


async def _frames(writing: Writing, body: ChatBody) -> AsyncGenerator[bytes, None]:
    """The first frame of a choice has its role, and comes with the first token, not before.

    Clients want first frames in the order of the choices.
    """
    frames = _Frames(writing, body)
    async with writing.served.job(writing.requests) as job:
        async for parts in writing.parts(job):
            if not parts:
                yield PING
            for part in parts:
                for data in frames.of(part):
                    yield data
    if body.stream_options.include_usage:
        yield writing.last(_CHUNK, frames.completions)
    yield DONE


class _Frames:
    def __init__(self, writing: Writing, body: ChatBody) -> None:
        self._writing = writing
        self._body = body
        self._n_begun = 0
        self._n_calls = [0] * body.n
        self._done: dict[int, Completion] = {}

    @property
    def completions(self) -> list[Completion]:
        return [self._done[i] for i in sorted(self._done)]

    def of(self, part: Parts) -> list[bytes]:
        """The frames of what is new of a choice."""
        i = part.choice
        found = [
            self._chunk(k, {"role": "assistant", "content": ""})
            for k in range(self._n_begun, i + 1)
        ]
        self._n_begun = max(self._n_begun, i + 1)
        report = _logprobs(self._writing, self._body, part.logprobs)
        if part.text or (report and report["content"]):
            found.append(self._chunk(i, {"content": part.text}, report))
        for call in part.calls:
            found.append(self._chunk(i, {"tool_calls": [self._call(i, call)]}))
        if part.completion is not None:
            self._done[i] = part.completion
            reason = finish_reason(part.completion, self._n_calls[i] > 0)
            found.append(self._chunk(i, {}, None, reason))
        return found

    def _call(self, choice: int, call: ToolCall) -> dict[str, object]:
        self._n_calls[choice] += 1
        return {"index": self._n_calls[choice] - 1, **call_of(call)}

    def _chunk(
        self, index: int, delta: object, report: object = None, reason: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": report, "finish_reason": reason}
        with_usage = self._body.stream_options.include_usage
        return self._writing.chunk(_CHUNK, choice, with_usage=with_usage)
