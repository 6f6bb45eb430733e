"""Questions by task, and the tokens that a model reads of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyflow import Model
from pyflow.generate.session import chat_template

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
    """Continue the text as it stands, without the chat template."""


class QuestionError(ValueError):
    """A question file or a prompt length that cannot be used."""


def read(path: str) -> dict[str, list[Question]]:
    """The questions of a file by task, in the file's order.

    A line is a JSON object with question_id, category and turns as in Spec-Bench (only the first
    turn is asked), or with id, task and prompt; "raw": true leaves the chat template out.
    """
    tasks: dict[str, list[Question]] = {}
    for where, line, value in _json_lines(path):
        question = _question(value, number=sum(map(len, tasks.values())) + 1)
        if question is None:
            raise QuestionError(
                f'{where}: expected {{"task": TEXT, "prompt": TEXT}}, or "category" and "turns" as '
                f"in Spec-Bench, found {line[:60]}"
            )
        tasks.setdefault(question.task, []).append(question)
    if not tasks:
        raise QuestionError(f"{path}: expected at least one question, found none")
    return tasks


def _json_lines(path: str) -> Iterator[tuple[str, str, Any]]:
    """The place, the text and the value of every line that is not blank."""
    try:
        lines = Path(path).read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise QuestionError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield f"{path}, line {number}", line, json.loads(line)
            except ValueError as error:
                raise QuestionError(f"{path}, line {number}: is not JSON: {error}") from None


def only(found: dict[str, list[Question]], names: str | None) -> dict[str, list[Question]]:
    """The named tasks in the file's order; None names all of them."""
    wanted = list(found) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in found]:
        raise QuestionError(f"--tasks: expected some of {', '.join(found)}, found {unknown[0]!r}")
    return {name: several for name, several in found.items() if name in wanted}


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
    """At most n, evenly from the whole list: a task may be sorted by sub-task."""
    n = min(n, len(questions))
    return [questions[i * len(questions) // n] for i in range(n)]


def tokens(model: Model, question: Question, limit: int) -> list[int]:
    """At most `limit` tokens: cuts off the end of a longer text, never the chat template."""
    found = encode(model, question.text, raw=question.raw)
    if len(found) <= limit:
        return found
    text = model.tokenizer.encode(question.text, add_special=False)
    keep = len(text) - (len(found) - limit)
    while keep > 0:
        # A cut within a character or a word may add some tokens.
        found = encode(model, model.tokenizer.decode(text[:keep]), raw=question.raw)
        if len(found) <= limit:
            return found
        keep -= len(found) - limit
    raise QuestionError(
        f"--prompt-len: {limit} tokens have no room for a question in the chat template of "
        f"{model.name}; allow more"
    )


def encode(model: Model, text: str, *, raw: bool) -> list[int]:
    """The tokens of a question in the chat template, or of the raw text."""
    if raw or model.chat_template is None:
        return model.tokenizer.encode(text)
    return chat_template(model).encode([{"role": "user", "content": text}])
