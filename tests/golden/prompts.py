"""The prompts of the continuation goldens: code, prose, many scripts, chat, and one long text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# How each model's users format a conversation; the continuation starts at the last marker.
CHATML = "<|im_start|>{role}\n{text}<|im_end|>\n", "<|im_start|>assistant\n"
GEMMA = "<start_of_turn>{role}\n{text}<end_of_turn>\n", "<start_of_turn>model\n"
CHAT_FORMATS = {"smollm2": CHATML, "qwen2.5-coder-1.5b": CHATML, "gemma3": GEMMA}

CONVERSATIONS = {
    "chat": (("user", "What is the capital of Australia, and why is it not Sydney?"),),
    "chat turns": (
        ("user", "Give me a name for a grey cat."),
        ("assistant", "How about Pebble?"),
        ("user", "Nice. Now write a haiku about her."),
    ),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text for one continuation; special: control tokens are written out in it."""

    name: str
    text: str
    special: bool


def ledger(n_entries: int) -> str:
    """A text longer than gemma3's 512-token window: some layers must not see its beginning."""
    nouns = ("barrels of salt", "coils of rope", "sacks of flour", "lamps", "crates of tea")
    lines = ["Ledger of the harbour office. The keeper of the seal is Tobias Wren.\n"]
    state = 12345
    for i in range(1, n_entries + 1):
        state = (state * 1103515245 + 12345) % 2**31
        lines.append(f"Entry {i}: {state // 65536 % 90 + 10} {nouns[i % 5]} for pier {i % 7}.\n")
    lines.append("Summary: the keeper of the seal is")
    return "".join(lines)


def prompts_for(model: str) -> Iterator[Prompt]:
    """The prompts in a fixed order, conversations in the model's own format."""
    turn, answer = CHAT_FORMATS[model]
    plain = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text())
    for name, text in plain.items():
        yield Prompt(name, text, special=False)
    for name, turns in CONVERSATIONS.items():
        names = {"assistant": "model"} if turn is GEMMA[0] else {}
        text = "".join(turn.format(role=names.get(role, role), text=said) for role, said in turns)
        yield Prompt(name, text + answer, special=True)
    yield Prompt("beyond the window", ledger(64), special=False)
