"""The guardrail stands before every conversation, and texts are classified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyflow.chat.guardrail import GUARDRAIL
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
