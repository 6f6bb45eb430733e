"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import msgspec

from pyflow.batch.completion import Completion, TokenLogprobs
from pyflow.batch.request import Request, View
from pyflow.chat import ChatTemplate
from pyflow.serve.api import logprobs
from pyflow.serve.api.sampling import Count, NLogprobs, Sampled, copies, finish_reason
from pyflow.serve.api.writing import Writing
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.job import Update
from pyflow.serve.models import Served
from pyflow.serve.replies import DONE, PING, EventStream, Reply

_CHUNK = "chat.completion.chunk"
_NOT_YET = "leave it out"


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None

    def plain(self, index: int) -> dict[str, object]:
        """As templates take it. ApiError: it has parts that are no text."""
        where = f"messages[{index}].content"
        out: dict[str, object] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text_of(self.content, where),
        }
        if self.name is not None:
            out["name"] = self.name
        return out


def text_of(content: str | list[dict[str, Any]] | None, where: str) -> str:
    """The text of a message's content. ApiError, naming `where`, for other parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        text = part.get("text")
        if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(
            text, str
        ):
            raise bad_request(
                f"{where}: expected parts of type text, found {part.get('type')!r:.40}; "
                "pyflow reads text alone, and fetches no URL",
                "messages",
            )
        texts.append(text)
    return "\n".join(texts)


class TemplateArguments(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Variables that a client may set in the model's own template."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatBody(Sampled, kw_only=True):
    """The request of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: NLogprobs = 0
    chat_template_kwargs: TemplateArguments = msgspec.field(default_factory=TemplateArguments)

    refused: ClassVar[dict[str, str]] = {
        "chat_template": "only the model's own template is used",
        "audio": "the model writes text",
        "documents": "put them into a message",
        "prediction": _NOT_YET,
        "web_search_options": "nothing is fetched",
        "functions": _NOT_YET,
        "function_call": _NOT_YET,
        "tools": _NOT_YET,
        "tool_choice": _NOT_YET,
        "response_format": _NOT_YET,
        "structured_outputs": _NOT_YET,
        "guided_json": _NOT_YET,
        "guided_regex": _NOT_YET,
        "guided_choice": _NOT_YET,
        "guided_grammar": _NOT_YET,
        "grammar": _NOT_YET,
        "json_schema": _NOT_YET,
    }

    @property
    def n_logprobs(self) -> int:
        """How many to report; with a drawn token comes at least one."""
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs: needs logprobs: true", "top_logprobs")
        return max(1, self.top_logprobs) if self.logprobs else 0


def encode(served: Served, messages: Sequence[Message], kwargs: TemplateArguments) -> list[int]:
    """The tokens of a conversation. In the preparing thread."""
    if not messages:
        raise bad_request("messages: expected at least one, found none", "messages")
    plain = [message.plain(i) for i, message in enumerate(messages)]
    return template(served).encode(
        plain, variables=msgspec.to_builtins(kwargs), tell=lambda _: None
    )


def template(served: Served) -> ChatTemplate:
    """ApiError: the model has none."""
    found = served.model.chat_template
    if found is None:
        raise bad_request(
            f"model: {served.name} has no chat template: it continues text and was not trained to "
            "chat; use /v1/completions, or serve an instruct model",
            "model",
        )
    return found


async def plan(call: Call[ChatBody]) -> Writing:
    """The texts that the request asks for. ApiError: it cannot be done."""
    body, state = call.body, call.state
    served = state.shelf.get(body.model)
    tokens = await state.preparing.run(
        lambda: encode(served, body.messages, body.chat_template_kwargs), "messages"
    )
    served.check_tokens(tokens, param="messages")
    n_predict = body.max_completion_tokens or body.max_tokens
    request = Request(
        view=View(tokens),
        sampling=body.sampling(served, body.n_logprobs),
        limit=served.n_ctx,
        n_predict=n_predict or served.model.defaults.n_predict,
        stop=body.stops,
        reuse=True,
        key=call.tenant,
        watched=body.stream,
    )
    return Writing.of(served, body, copies(request, body.n), "chatcmpl")


async def answer(call: Call[ChatBody]) -> Reply | EventStream:
    body = call.body
    writing = await plan(call)
    if body.stream:
        return EventStream(_frames(writing, body), call.state.settings.send_s)
    done = await writing.completions()
    choices = [_choice(writing, body, i, completion) for i, completion in enumerate(done)]
    return Reply.of_json(writing.body("chat.completion", choices, done))


def _choice(
    writing: Writing, body: ChatBody, index: int, completion: Completion
) -> dict[str, object]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": completion.text},
        "logprobs": _logprobs(writing, body, completion.logprobs or ()),
        "finish_reason": finish_reason(completion),
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
    with_usage = body.stream_options.include_usage
    n_begun = 0
    done: dict[int, Completion] = {}

    def chunk(index: int, delta: dict[str, str], reason: str | None, report: object) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": report, "finish_reason": reason}
        return writing.chunk(_CHUNK, choice, with_usage=with_usage)

    def begin(update: Update) -> list[bytes]:
        """The roles of choices up to this one."""
        nonlocal n_begun
        first, n_begun = n_begun, max(n_begun, update.choice + 1)
        return [
            chunk(i, {"role": "assistant", "content": ""}, None, None)
            for i in range(first, n_begun)
        ]

    async with writing.job() as job:
        async for updates in job.updates():
            if not updates:
                yield PING
            for update in updates:
                for role in begin(update):
                    yield role
                report = _logprobs(writing, body, update.logprobs)
                if update.text or (report and report["content"]):
                    yield chunk(update.choice, {"content": update.text}, None, report)
                if update.completion is not None:
                    done[update.choice] = update.completion
                    yield chunk(update.choice, {}, finish_reason(update.completion), None)
    if with_usage:
        yield writing.last(_CHUNK, [done[i] for i in sorted(done)])
    yield DONE
