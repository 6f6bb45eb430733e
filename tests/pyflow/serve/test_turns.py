"""A conversation that goes on is read from where its tokens are new."""

from __future__ import annotations

from typing import Any

import pytest

from pyflow.model import Model
from pyflow.sampling import SamplingParams

from .conftest import Server
from .test_metrics import metrics

CHAT = "/v1/chat/completions"
GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize("said", [None, "Mars, I think."], ids=["as drawn", "changed"])
def test_only_what_is_new_is_read(server: Server, smollm2: Model, said: str | None) -> None:
    template = smollm2.chat_template
    assert template is not None
    messages: list[dict[str, str]] = [{"role": "system", "content": f"Be short. {said}"}]
    before: list[int] = []
    for question in ("Name a planet.", "Another one?", "And one more?"):
        messages.append({"role": "user", "content": question})
        prompt = template.encode(messages)
        counted = metrics(server)
        body: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 24}
        found = server.post(CHAT, **body)
        grown = metrics(server)
        grown.subtract(counted)
        n_cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        if before:
            alike = [a == b for a, b in zip(before, prompt, strict=False)]
            assert n_cached == [*alike, False].index(False)
        assert grown["pyflow_prompt_tokens_cached_total"] == n_cached
        assert grown["pyflow_prompt_tokens_computed_total"] == len(prompt) - n_cached
        drawn = smollm2.generate(prompt, sampling=GREEDY, n_predict=24)
        # The last token of all is not read: it ends the text, or the text was cut off after it.
        n_read = len(drawn.tokens) - (drawn.stop_reason != "eos")
        before = [*prompt, *drawn.tokens[:n_read]]
        answer = found["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": said or answer})
