"""The guardrail stands before every conversation, and texts are classified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyflow.chat.guardrail import GUARDRAIL
from pyflow.generate.moderation import CATEGORIES, moderate
from pyflow.model import Model
from pyflow.serve.settings import Settings

from .conftest import Server

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Name three rivers."}


@pytest.fixture(scope="module")
def guarded(smollm2: Model) -> Iterator[Server]:
    server = Server({"smollm2": smollm2}, Settings(port=0, n_parallel=2, n_ctx=512, guardrail=True))
    yield server
    server.stop()


@pytest.mark.parametrize("system", ["", "Be brief."])
def test_a_guarded_conversation_is_that_with_the_prompt_in_front(
    server: Server, guarded: Server, system: str
) -> None:
    own = [{"role": "system", "content": system}] if system else []
    whole = [{"role": "system", "content": f"{GUARDRAIL}\n\n{system}".strip()}, USER]
    asked = {"temperature": 0, "max_tokens": 4}
    found = guarded.post(CHAT, messages=[*own, USER], **asked)
    expected = server.post(CHAT, messages=whole, **asked)
    assert found["choices"] == expected["choices"]
    assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    assert found["system_fingerprint"] != expected["system_fingerprint"]
    shown = guarded.post("/apply-template", messages=[*own, USER])["prompt"]
    assert shown == server.post("/apply-template", messages=whole)["prompt"]
    counted = guarded.post("/v1/messages/count_tokens", messages=[USER], system=system)
    assert counted["input_tokens"] == expected["usage"]["prompt_tokens"]


def test_moderations_have_the_shape_of_openai(guarded: Server, smollm2: Model) -> None:
    texts = ["Name three rivers.", 'a "quoted" text']
    found = guarded.post("/v1/moderations", input=texts, model="smollm2")
    assert found["id"].startswith("modr-")
    expected = moderate(smollm2, [(text, None) for text in texts])
    for result, verdict in zip(found["results"], expected, strict=True):
        assert result["flagged"] is (verdict.category != "acceptable")
        assert result["categories"] == {
            name: name == verdict.category for name in CATEGORIES if name != "acceptable"
        }
        for name, score in result["category_scores"].items():
            assert score == verdict.probabilities[name]
    parts = guarded.post("/v1/moderations", input=[{"type": "text", "text": texts[0]}])
    assert parts["results"] == found["results"][:1]
    answered = guarded.post("/v1/moderations", input=texts[0], answer="The Nile.")
    assert answered["results"] != parts["results"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a"] * 65}, "input"),
        ({"input": [{"type": "image_url", "image_url": {"url": "http://x"}}]}, "input"),
        ({"input": "word " * 600}, "input"),
        ({"input": ["a", "b"], "answer": "c"}, "answer"),
    ],
    ids=["missing", "none", "empty", "many", "image", "long", "answer"],
)
def test_what_cannot_be_moderated_is_refused(
    guarded: Server, body: dict[str, object], param: str
) -> None:
    status, error = guarded.error("/v1/moderations", **body)
    assert (status, error["param"]) == (400, param)
