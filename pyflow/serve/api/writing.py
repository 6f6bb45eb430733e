"""From checked requests to texts: what the APIs that write have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyflow.batch.completion import Completion, TokenLogprobs
from pyflow.batch.request import Request
from pyflow.chat.tools import CallFormat, CallReader, ToolCall
from pyflow.serve.api.sampling import Sampled
from pyflow.serve.errors import ApiError
from pyflow.serve.http.replies import frame
from pyflow.serve.job import Job
from pyflow.serve.models import Served


class Parts(NamedTuple):
    """What is new of one of the texts."""

    choice: int
    text: str
    calls: Sequence[ToolCall]
    logprobs: Sequence[TokenLogprobs]
    completion: Completion | None


@dataclass(frozen=True, slots=True)
class Writing:
    """The texts that a request asks for, and what all its answers begin with."""

    served: Served
    requests: Sequence[Request]
    head: dict[str, object]
    n_choices: int
    """Answers to each prompt."""
    calls: CallFormat | None = None
    """How answers call tools, if they may."""
    many_calls: bool = True

    @classmethod
    def of(
        cls,
        served: Served,
        body: Sampled,
        requests: Sequence[Request],
        prefix: str,
        calls: CallFormat | None = None,
        many_calls: bool = True,
    ) -> Writing:
        head: dict[str, object] = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": "",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "seed": requests[0].sampling.seed,
        }
        return cls(served, requests, head, body.n, calls, many_calls)

    async def parts(self, job: Job) -> AsyncGenerator[list[Parts], None]:
        """What is new, with calls told from text; an empty list after a silence."""
        readers = [self._reader() for _ in self.requests]
        async for updates in job.updates():
            yield [
                Parts(
                    update.choice,
                    *readers[update.choice](update.text, update.completion is not None),
                    update.logprobs,
                    update.completion,
                )
                for update in updates
            ]

    def split(self, completion: Completion) -> tuple[str, list[ToolCall]]:
        """The text of an answer and its calls."""
        return self._reader()(completion.text, True)

    def _reader(self) -> Callable[[str, bool], tuple[str, list[ToolCall]]]:
        """Tells calls from text, in the parts of one answer."""
        if self.calls is None:
            return lambda text, _: (text, [])
        tokenizer, n_found = self.served.model.tokenizer, 0

        def is_control(text: str) -> bool:
            return tokenizer.control_starts(text)[:1] == [0]

        reader = CallReader(self.calls, is_control)

        def read(text: str, is_last: bool) -> tuple[str, list[ToolCall]]:
            nonlocal n_found
            found = reader.feed(text, is_last=is_last)
            calls = [each for each in found if isinstance(each, ToolCall)]
            if not self.many_calls:
                calls = calls[: 1 - min(1, n_found)]
            n_found += len(calls)
            return "".join(each for each in found if isinstance(each, str)), calls

        return read

    def body(
        self, kind: str, choices: Sequence[object], completions: Sequence[Completion]
    ) -> dict[str, object]:
        """A whole answer."""
        return {
            **self.head,
            "object": kind,
            "choices": choices,
            "usage": usage(completions, self.n_choices),
            "timings": completions[0].timings.as_dict(),
        }

    def chunk(self, kind: str, choice: object, *, with_usage: bool) -> bytes:
        """A frame with one choice; usage is null until the last, where it is asked for."""
        value = {**self.head, "object": kind, "choices": [choice]}
        return frame({**value, "usage": None} if with_usage else value)

    def last(self, kind: str, completions: Sequence[Completion]) -> bytes:
        """The frame with the usage, which has no choice."""
        return frame(self.body(kind, [], completions))


def finish_reason(completion: Completion, has_calls: bool = False) -> str:
    """As OpenAI's API calls it. ApiError: the text was cut off from outside."""
    reason = completion.stop_reason
    if reason in ("cancelled", "error"):
        raise ApiError(500, "the answer was cut off")
    if reason not in ("eos", "stop"):
        return "length"
    return "tool_calls" if has_calls else "stop"


def call_of(call: ToolCall) -> dict[str, object]:
    """A call as OpenAI's API has it; Mistral's templates want ids of nine characters."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": secrets.token_hex(5)[:9], "type": "function", "function": function}


def n_generated(completion: Completion) -> int:
    """Tokens drawn, the one that ends the text included."""
    return completion.timings.predicted_n


def n_cached(completion: Completion) -> int:
    """Tokens of the prompt that needed no computation."""
    return max(0, len(completion.prompt_tokens) - completion.timings.prompt_n)


def usage(completions: Sequence[Completion], n_choices: int) -> dict[str, object]:
    """Of n_choices answers to each prompt, in turn: a prompt counts once."""
    prompts = completions[::n_choices]
    n_prompt = sum(len(each.prompt_tokens) for each in prompts)
    n_drawn = sum(map(n_generated, completions))
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_drawn,
        "total_tokens": n_prompt + n_drawn,
        "prompt_tokens_details": {"cached_tokens": sum(map(n_cached, prompts))},
    }
