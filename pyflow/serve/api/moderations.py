"""/v1/moderations: what a served model takes texts for."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from pyflow.batch.request import Request, View
from pyflow.generate.moderation import (
    ACCEPTABLE,
    N_PREDICT,
    SAMPLING,
    Verdict,
    constraint,
    reflection,
    verdict,
)
from pyflow.serve.api.conversation import template, text_of
from pyflow.serve.api.sampling import HARMLESS
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.http.bodies import Body
from pyflow.serve.http.replies import Reply
from pyflow.serve.models import Held, Served
from pyflow.serve.settings import MAX_PROMPTS


class ModerationBody(Body, kw_only=True):
    """The request of /v1/moderations; `answer` is ours: what an assistant says to the input."""

    model: str | None = None
    input: str | list[str | dict[str, Any]]
    answer: str | None = None

    harmless: ClassVar[frozenset[str]] = HARMLESS

    @property
    def texts(self) -> list[tuple[str, str | None]]:
        """Questions, the only one with the answer. ApiError: too many, none, or no text."""
        given = [self.input] if isinstance(self.input, str) else self.input
        if not 1 <= len(given) <= MAX_PROMPTS:
            raise bad_request(
                f"input: expected 1 to {MAX_PROMPTS} texts, found {len(given)}", "input"
            )
        if self.answer is not None and len(given) > 1:
            raise bad_request(f"answer: expected one input with it, found {len(given)}", "answer")
        texts = [each if isinstance(each, str) else text_of([each], "input") for each in given]
        if not all(texts):
            raise bad_request("input: expected some text, found none", "input")
        return [(text, self.answer) for text in texts]


async def answer(call: Call[ModerationBody]) -> Reply:
    served, texts, tenant = call.served, call.body.texts, call.tenant
    requests = await call.state.preparing.run(
        lambda: [_request(served, *text, tenant) for text in texts]
    )
    done = await served.answered(requests)
    verdicts = [verdict(served.model.tokenizer, each) for each in done]
    return Reply.of_json(
        {
            "id": f"modr-{secrets.token_hex(12)}",
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "results": [_result(each) for each in verdicts],
        }
    )


def _request(served: Served, question: str, said: str | None, tenant: str) -> Request:
    """In the preparing thread."""
    served.check_size(question, said or "", param="input")
    # Without the guardrail: it would be a second system message.
    chats = served.model.chat_template or template(served)
    tokens = chats.encode(reflection(question, said), tell=lambda _: None)
    served.check_tokens(tokens, param="input")
    return Request(
        view=View(tokens),
        sampling=SAMPLING,
        limit=served.n_ctx,
        n_predict=N_PREDICT,
        reuse=True,
        matcher=served.matchers(Held("input", constraint()))(),
        key=tenant,
        watched=False,
    )


def _result(found: Verdict) -> dict[str, object]:
    scores = {name: p for name, p in found.probabilities.items() if name != ACCEPTABLE}
    return {
        "flagged": not found.is_acceptable,
        "categories": {name: name == found.category for name in scores},
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }
