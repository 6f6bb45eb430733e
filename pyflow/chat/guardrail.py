"""The guardrail of the Mistral 7B paper (Jiang et al., 2023, section 5.1): a system prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

GUARDRAIL = (
    "Always assist with care, respect, and truth. Respond with utmost utility yet securely. "
    "Avoid harmful, unethical, prejudiced, or negative content. "
    "Ensure replies promote fairness and positivity."
)
"""The paper's own words."""


def guarded(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The messages with the guardrail in front; a system message that is there follows it."""
    first = messages[0] if messages else {}
    content = first.get("content")
    if first.get("role") != "system":
        return [{"role": "system", "content": GUARDRAIL}, *messages]
    if not content:
        joined: object = GUARDRAIL
    elif isinstance(content, str):
        joined = f"{GUARDRAIL}\n\n{content}"
    else:  # parts
        joined = [{"type": "text", "text": GUARDRAIL}, *cast("Sequence[object]", content)]
    return [{**first, "content": joined}, *messages[1:]]
