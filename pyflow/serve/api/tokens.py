"""/tokenize, /detokenize and /apply-template."""

from __future__ import annotations

import msgspec

from pyflow.serve.api.conversation import Message, TemplateArguments, encode
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.http.bodies import Body
from pyflow.serve.http.replies import Reply
from pyflow.serve.models import Served


class TokenizeBody(Body, kw_only=True):
    """The request of /tokenize, in vLLM's words (prompt) or llama-server's (content)."""

    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    chat_template_kwargs: TemplateArguments = msgspec.field(default_factory=TemplateArguments)
    add_special_tokens: bool | None = None
    add_special: bool = False
    parse_special: bool = True
    return_token_strs: bool = False
    with_pieces: bool = False


class DetokenizeBody(Body, kw_only=True):
    """The request of /detokenize."""

    tokens: list[int]


class TemplateBody(Body, kw_only=True):
    """The request of /apply-template."""

    messages: list[Message]
    chat_template_kwargs: TemplateArguments = msgspec.field(default_factory=TemplateArguments)


async def tokenize(call: Call[TokenizeBody]) -> Reply:
    body = call.body
    served = call.served
    return await call.state.preparing.run(lambda: _tokenized(served, body))


def _tokenized(served: Served, body: TokenizeBody) -> Reply:
    ids = _ids(served, body)
    found: dict[str, object] = {"count": len(ids), "max_model_len": served.n_ctx, "tokens": ids}
    if body.with_pieces or body.return_token_strs:
        tokenizer = served.model.tokenizer
        pieces = [tokenizer.token_text(token) for token in ids]
        if body.with_pieces:
            found["tokens"] = [{"id": i, "piece": p} for i, p in zip(ids, pieces, strict=True)]
        if body.return_token_strs:
            found["token_strs"] = pieces
    return Reply.of_json(found)


def _ids(served: Served, body: TokenizeBody) -> list[int]:
    if body.messages is not None:
        return encode(served, body.messages, body.chat_template_kwargs)
    text = body.content if body.prompt is None else body.prompt
    if text is None:
        raise bad_request("prompt: expected prompt, content or messages, found none", "prompt")
    special = body.add_special_tokens
    if special is None:  # each API has a default of its own
        special = body.prompt is not None or body.add_special
    return served.model.tokenizer.encode(
        text, add_special=special, parse_special=body.parse_special
    )


async def detokenize(call: Call[DetokenizeBody]) -> Reply:
    served = call.served
    tokens = call.body.tokens
    most = served.model.spec.n_vocab
    wrong = next((token for token in tokens if not 0 <= token < most), None)
    if wrong is not None:
        raise bad_request(f"tokens: expected 0 to {most - 1}, found {wrong}", "tokens")
    text = await call.state.preparing.run(lambda: served.model.tokenizer.decode(tokens), "tokens")
    return Reply.of_json({"prompt": text, "content": text})


async def apply_template(call: Call[TemplateBody]) -> Reply:
    """The text of a conversation as the model reads it."""
    body = call.body
    served = call.served

    def text() -> str:
        ids = encode(served, body.messages, body.chat_template_kwargs)
        return served.model.tokenizer.decode(ids)

    return Reply.of_json({"prompt": await call.state.preparing.run(text, "messages")})
