"""Metrics agree with what answers tell."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyflow.model import Model
from pyflow.sampling import SamplingParams

from .conftest import Server

CHAT = "/v1/chat/completions"
GREEDY = SamplingParams(temperature=0)


def metrics(server: Server) -> Counter[str]:
    """By name; of histograms the sum and the count."""
    text = server.request("GET", "/metrics", None, {})[2].decode()
    families = text_string_to_metric_families(text)
    return Counter(
        {s.name: s.value for family in families for s in family.samples if "le" not in s.labels}
    )


def test_counters_agree_with_the_usage_of_answers(server: Server) -> None:
    before = metrics(server)
    usages = []
    for body in (
        {"max_tokens": 5},
        {"max_tokens": 3, "n": 2, "seed": 1},
        {"max_tokens": 8, "structured_outputs": {"choice": ["river", "mountain"]}},
    ):
        messages = [{"role": "user", "content": f"Name a {len(usages)}th thing."}]
        usages.append(server.post(CHAT, messages=messages, **body)["usage"])
    grown = metrics(server)
    grown.subtract(before)
    n_drawn = sum(usage["completion_tokens"] for usage in usages)
    n_read = sum(usage["prompt_tokens"] for usage in usages) + usages[1]["prompt_tokens"]
    assert grown["pyflow_generated_tokens_total"] == n_drawn
    cached, computed = (grown[f"pyflow_prompt_tokens_{n}_total"] for n in ("cached", "computed"))
    assert cached + computed == n_read  # the prompt of two choices counts twice
    assert grown["pyflow_inter_token_seconds_count"] == n_drawn - 4
    assert grown["pyflow_queue_seconds_count"] == 4
    assert grown["pyflow_request_seconds_count"] == 3
    assert grown["pyflow_mask_seconds"] > 0


@pytest.mark.parametrize("said", [None, "Mars, I think."], ids=["as drawn", "changed"])
def test_of_a_conversation_that_goes_on_only_the_new_is_read(
    server: Server, smollm2: Model, said: str | None
) -> None:
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
