"""The questions of `pyflow bench spec`: which tasks there are, and what a model reads of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.generate import encode
from pyflow.cli.inputs import json_values

if TYPE_CHECKING:
    from pyflow.model import Model

# Spec-Bench takes these categories of MT-bench for one task (hemingkx/Spec-Bench).
_MULTI_TURN = "multi-turn conversation"
_OF_MT_BENCH = {
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
}


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    task: str
    text: str
    raw: bool
    """To be continued as it stands, and not asked by the chat template."""


def read(path: str) -> dict[str, list[Question]]:
    """The questions of a file by their task, in the file's order.

    A line has question_id, category and turns, of which the first counts, as in Spec-Bench; or id,
    task and prompt; and perhaps "raw": true.
    """
    tasks: dict[str, list[Question]] = {}
    for where, line, value in json_values(path):
        question = _question(value, number=sum(map(len, tasks.values())) + 1)
        if question is None:
            raise click.UsageError(
                f'{where}: expected {{"task": TEXT, "prompt": TEXT}}, or "category" and "turns" as '
                f"in Spec-Bench, found {line[:60]}"
            )
        tasks.setdefault(question.task, []).append(question)
    if not tasks:
        raise click.UsageError(f"{path}: expected at least one question, found none")
    return tasks


def _question(value: Any, number: int) -> Question | None:
    if not isinstance(value, dict):
        return None
    task, text, raw = value.get("task"), value.get("prompt"), value.get("raw", False)
    if task is None:
        task = value.get("category")
        task = _MULTI_TURN if task in _OF_MT_BENCH else task
    if text is None and isinstance(turns := value.get("turns"), list) and turns:
        text = turns[0]
    if not (isinstance(task, str) and task.strip() and isinstance(raw, bool)):
        return None
    if not (isinstance(text, str) and text.strip()):
        return None
    return Question(str(value.get("question_id", value.get("id", number))), task, text, raw)


def choose(questions: list[Question], n: int) -> list[Question]:
    """At most n of them, evenly from the whole list: tasks may have parts one after the other."""
    n = min(n, len(questions))
    return [questions[i * len(questions) // n] for i in range(n)]


def tokens(model: Model, question: Question, limit: int) -> list[int]:
    """What the model reads, limit tokens at most: the end of a longer text is left out, and never
    what the chat template puts around it."""
    chat = False if question.raw else None
    found = encode(model, question.text, chat)
    if len(found) <= limit:
        return found
    text = model.tokenizer.encode(question.text, add_special=False)
    keep = len(text) - (len(found) - limit)
    while keep > 0:
        # A cut within a character, or within a word, may take some tokens more.
        found = encode(model, model.tokenizer.decode(text[:keep]), chat)
        if len(found) <= limit:
            return found
        keep -= len(found) - limit
    raise click.UsageError(
        f"--prompt-len: {limit} tokens have no room for a question in the chat template of "
        f"{model.name}; allow more"
    )
