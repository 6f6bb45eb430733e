"""Messages as clients send them, and their tokens by the model's template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pyflow.chat import ChatTemplate
from pyflow.engine.loaded import encoder_writes_nothing
from pyflow.engine.sources import reads_sources
from pyflow.errors import PyflowError
from pyflow.serve.api.constraints import Tool
from pyflow.serve.errors import bad_request, of_request
from pyflow.serve.models import Served

_TEXTS = ("text", "input_text", "output_text", "refusal")


class Called(msgspec.Struct):
    name: str
    arguments: str = "{}"


class CallMade(msgspec.Struct):
    """A call that the model made before."""

    function: Called
    id: str = ""
    type: str = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[CallMade] | None = None
    tool_call_id: str | None = None

    def plain(self, index: int) -> dict[str, object]:
        """As templates take it. ApiError: it has parts that are no text."""
        out: dict[str, object] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text_of(self.content, f"messages[{index}].content"),
        }
        if self.tool_calls:
            out["tool_calls"] = [_call(call, index) for call in self.tool_calls]
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                out[name] = value
        return out


class TemplateArguments(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Variables that a client may set in the model's own template."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


def text_of(content: str | list[dict[str, Any]] | None, where: str) -> str:
    """The text of a message's content. ApiError, naming `where`, for other parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        text, name = part.get("text", part.get("refusal")), where.partition("[")[0]
        if (kind := part.get("type")) not in _TEXTS:
            raise bad_request(
                f"{where}: expected parts of type text, found {kind!r:.40}; "
                "pyflow reads text alone, and fetches no URL",
                name,
            )
        if not isinstance(text, str):
            raise bad_request(f"{where}[{i}].text: expected text, found {text!r:.40}", name)
        texts.append(text)
    return "\n".join(texts)


def _call(call: CallMade, index: int) -> dict[str, object]:
    """Templates want arguments as an object, where clients send its text."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(
            f"messages[{index}].tool_calls: arguments: expected JSON, "
            f"found {call.function.arguments!r:.60}",
            "messages",
        ) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def encode(
    served: Served,
    messages: Sequence[Message],
    kwargs: TemplateArguments,
    tools: Sequence[Tool] = (),
) -> list[int]:
    """The tokens of a conversation. In the preparing thread."""
    if not messages:
        raise bad_request("messages: expected at least one, found none", "messages")
    plain = [message.plain(i) for i, message in enumerate(messages)]
    variables = msgspec.to_builtins(kwargs)
    if tools:
        variables["tools"] = msgspec.to_builtins(tools)
    try:
        return template(served).encode(plain, variables=variables, tell=lambda _: None)
    except PyflowError as error:
        raise of_request(error, "messages") from None


def template(served: Served) -> ChatTemplate:
    """ApiError: the model has none."""
    spec, found = served.model.spec, served.model.chat_template
    if spec.is_encoder:
        raise bad_request(f"model: {encoder_writes_nothing(spec)}", "model")
    if found is None and spec.source is not None:
        raise bad_request(f"model: {reads_sources(spec)}, or /v1/completions", "model")
    if found is None:
        raise bad_request(
            f"model: {served.name} has no chat template: it continues text and was not trained to "
            "chat; use /v1/completions, or serve an instruct model",
            "model",
        )
    return found.guarded() if served.guardrail else found
