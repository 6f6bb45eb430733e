"""/v1/completions: texts and token ids continued as they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec

from pyflow.batch.completion import Completion, TokenLogprobs
from pyflow.batch.request import Request, View
from pyflow.chat.infill import infill
from pyflow.generate.languages import Languages
from pyflow.serve.api import constraints, logprobs
from pyflow.serve.api.constraints import ResponseFormat, Structured
from pyflow.serve.api.sampling import NOT_GUIDED, NLogprobs, Sampled, copies
from pyflow.serve.api.writing import Writing, finish_reason
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.http.replies import DONE, PING, EventStream, Reply
from pyflow.serve.models import Served
from pyflow.serve.settings import MAX_PROMPTS

_KIND = "text_completion"
_N_PREDICT = 16  # as OpenAI's API has it
_N_WRITTEN = 256  # of a source, as `pyflow translate` has it


Prompt = str | list[str | int | list[int]]
"""Texts, or token ids, one or several."""


class CompletionBody(Sampled, kw_only=True):
    """The request of /v1/completions."""

    prompt: Prompt
    suffix: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] | None = None
    echo: bool = False
    logprobs: NLogprobs | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Structured | None = None
    grammar: str | None = None
    from_language: str | None = None
    to_language: str | None = None

    refused: ClassVar[dict[str, str]] = {
        "best_of": "ask for n texts and choose",
        "prompt_embeds": "write prompt",
        **NOT_GUIDED,
    }

    def check(self) -> None:
        """ApiError: fields that do not go together."""
        if self.suffix is not None and (self.echo or not isinstance(self.prompt, str)):
            raise bad_request("suffix: needs one prompt as text, without echo", "suffix")
        if self.echo and self.stream and self.logprobs is not None:
            raise bad_request("echo: logprobs of a prompt are not streamed", "echo")
        if self.max_tokens == 0 and not self.echo:
            raise bad_request("max_tokens: 0 needs echo: true", "max_tokens")


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: list[int]
    text: str


def _prompts(served: Served, body: CompletionBody, languages: Languages) -> list[_Prompt]:
    """Prompts as tokens. In the preparing thread."""
    if isinstance(body.prompt, str) and body.suffix is not None:
        served.check_size(body.prompt, body.suffix, param="prompt")
        tokens = infill(
            served.model.tokenizer, body.prompt, body.suffix, source=f"suffix: {served.name}"
        )
        return [_Prompt(tokens, body.prompt)]
    given = several(body.prompt, "prompt", MAX_PROMPTS)
    return [_prompt(served, each, languages) for each in given]


def several(given: Prompt, name: str, most: int) -> list[str | list[int]]:
    """Texts and token ids, each one text. ApiError: too many, none, or a mixture."""
    if isinstance(given, str):
        return [given]
    ids = [each for each in given if isinstance(each, int)]
    if ids and len(ids) == len(given):
        return [ids]
    if ids or not 1 <= len(given) <= most:
        what = "token ids beside other things" if ids else f"{len(given)}"
        raise bad_request(f"{name}: expected 1 to {most} texts or lists of ids, found {what}", name)
    return [each for each in given if not isinstance(each, int)]


def _prompt(served: Served, given: str | list[int], languages: Languages) -> _Prompt:
    if isinstance(given, str):
        served.check_size(given, param="prompt")
        return _Prompt(languages.encode(served.model.tokenizer, given), given)
    languages.check_ids()
    served.check_tokens(given, param="prompt", room=0)
    return _Prompt(given, _text(served, given))


def _text(served: Served, tokens: Sequence[int]) -> str:
    """Token ids as text, without control tokens."""
    reader = served.model.tokenizer.detokenizer()
    return "".join([*map(reader.feed, tokens), reader.flush()])


async def answer(call: Call[CompletionBody]) -> Reply | EventStream:
    body, state = call.body, call.state
    body.check()
    served = call.served
    prompts, requests = await state.preparing.run(lambda: _plan(served, body, call.tenant))
    writing = Writing.of(served, body, requests, "cmpl")
    if body.stream:
        return EventStream(_frames(writing, body, prompts), state.settings.send_s)
    done = await writing.served.answered(writing.requests)
    choices = [
        _choice(writing, body, i, prompts[i // body.n], completion)
        for i, completion in enumerate(done)
    ]
    return Reply.of_json(writing.body(_KIND, choices, done))


def _plan(served: Served, body: CompletionBody, tenant: str) -> tuple[list[_Prompt], list[Request]]:
    """Prompts, and the texts that they ask for. In the preparing thread."""
    n_report = None if body.logprobs is None else max(1, body.logprobs)
    sampling, stops = body.sampling(served, n_report or 0), body.stops
    held = constraints.chosen(body.response_format, body.structured_outputs, body.grammar)
    languages = Languages.of(served.model, body.from_language, body.to_language)
    prompts = _prompts(served, body, languages)
    start = languages.beginning(served.model.spec, served.model.defaults)
    if start is not None and body.echo:
        raise bad_request("echo: a source is not a part of the answer", "echo")
    requests: list[Request] = []
    seen: Counter[tuple[int, ...]] = Counter()
    for prompt in prompts:
        served.check_tokens(prompt.tokens, param="prompt", room=int(body.max_tokens != 0))
        n_predict = body.max_tokens
        if n_predict is None:
            n_predict = _N_PREDICT if start is None else _n_written(served, len(prompt.tokens))
        request = Request(
            view=View(prompt.tokens if start is None else [*start]),
            source=None if start is None else prompt.tokens,
            sampling=sampling,
            limit=served.n_ctx,
            n_predict=n_predict,
            stop=stops,
            reuse=True,
            n_report=n_report if body.echo else None,
            key=tenant,
            adapters=body.adapters(served),
            watched=body.stream,
        )
        key = tuple(prompt.tokens)
        requests += copies(request, body.n, seen[key] * body.n, served.matchers(held))
        seen[key] += 1
    return prompts, requests


def _n_written(served: Served, n_source: int) -> int:
    """Tokens of an answer to a source at most, where the request does not say."""
    said = served.model.defaults.n_predict
    return said if said > 0 else max(_N_WRITTEN, n_source)


def _choice(
    writing: Writing, body: CompletionBody, index: int, prompt: _Prompt, completion: Completion
) -> dict[str, object]:
    served, begins = writing.served, writing.requests[index].begins_text
    echo, report = prompt.text if body.echo else "", None
    if body.logprobs is not None:
        found: list[TokenLogprobs | None] = [*(completion.logprobs or ())]
        tokens, start = [each.token for each in completion.logprobs or ()], 0
        if body.echo:
            tokens = prompt.tokens + tokens
            found = [None, *(completion.prompt_logprobs or ()), *found]
            # A tokenizer may put a space before the text.
            start = len(echo) - len(_text(served, prompt.tokens))
        report = logprobs.TextReport(
            served.model.tokenizer, body.logprobs, start=start, begins_text=begins
        )
    return {
        "index": index,
        "text": echo + completion.text,
        "logprobs": report and report.part(tokens, found),
        "finish_reason": finish_reason(completion),
    }


async def _frames(
    writing: Writing, body: CompletionBody, prompts: Sequence[_Prompt]
) -> AsyncGenerator[bytes, None]:
    with_usage = body.stream_options.include_usage
    tokenizer, echo = writing.served.model.tokenizer, body.echo
    reports = [
        logprobs.TextReport(tokenizer, body.logprobs or 0, begins_text=request.begins_text)
        for request in writing.requests
    ]
    done: dict[int, Completion] = {}

    def chunk(index: int, text: str, reason: str | None, report: object) -> bytes:
        choice = {"index": index, "text": text, "logprobs": report, "finish_reason": reason}
        return writing.chunk(_KIND, choice, with_usage=with_usage)

    async with writing.served.job(writing.requests) as job:
        async for updates in job.updates():
            if not updates:
                yield PING
            if updates and echo:
                echo = False
                for index in range(len(writing.requests)):
                    yield chunk(index, prompts[index // body.n].text, None, None)
            for update in updates:
                index, report = update.choice, None
                if body.logprobs is not None and update.logprobs:
                    tokens = [each.token for each in update.logprobs]
                    report = reports[index].part(tokens, update.logprobs)
                if update.text or report:
                    yield chunk(index, update.text, None, report)
                if update.completion is not None:
                    done[index] = update.completion
                    yield chunk(index, "", finish_reason(update.completion), None)
    if with_usage:
        yield writing.last(_KIND, [done[i] for i in sorted(done)])
    yield DONE
