"""Metrics agree with what answers tell."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from .conftest import Server

CHAT = "/v1/chat/completions"


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
