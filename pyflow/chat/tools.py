"""Calls of tools in a model's text: how models spell them, and how to find them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pyflow.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model was trained to call a tool."""

    trigger: str
    """What begins a call and no other text; a control token, in some vocabularies."""
    before_name: str
    before_arguments: str
    end: str

    def begin(self, name: str) -> str:
        """What stands before the arguments of a call."""
        return f"{self.trigger}{self.before_name}{name}{self.before_arguments}"


# By what only templates of the format contain.
_FORMATS = {
    "<tool_call>": CallFormat(  # Hermes, Qwen 2.5 and 3
        "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>"
    ),
    "[TOOL_CALLS]": CallFormat(  # Mistral
        "[TOOL_CALLS]", ' [{"name": "', '", "arguments": ', "}]"
    ),
    '"parameters": dictionary of argument name': CallFormat(  # Llama 3.1 to 3.3
        '{"name": "', "", '", "parameters": ', "}"
    ),
}


def call_format(template: str, *, source: str) -> CallFormat:
    """That of a chat template. UnsupportedError, naming `source`: it shows none that is known."""
    for mark, found in _FORMATS.items():
        if mark in template:
            return found
    raise UnsupportedError(
        f"{source}: expected a chat template that shows calls as Hermes (Qwen too), Mistral or "
        "Llama 3 write them, found none; leave tools out"
    )


class ToolCall(NamedTuple):
    """A call that a model has written."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


class CallReader:
    """Splits a text that comes in parts into plain text and calls.

    Text that may be the beginning of a call waits. A call that is cut off stays text.
    """

    def __init__(self, form: CallFormat, is_control: Callable[[str], bool]) -> None:
        """is_control: whether a trigger is a control token, which texts do not show."""
        self._form = form
        shown = "" if is_control(form.trigger) else form.trigger
        self._mark = shown + form.before_name
        self._held = ""
        self._was_call = False

    def feed(self, text: str, *, is_last: bool = False) -> list[str | ToolCall]:
        """What is certain now; with the last part, all that is left."""
        self._held += text
        found: list[str | ToolCall] = []
        while self._held:
            at = self._held.find(self._mark)
            if at < 0:
                keep = 0 if is_last else _overlap(self._held, self._mark)
                self._put(found, len(self._held) - keep)
                break
            self._put(found, at)
            call, length = self._call()
            if call is None:
                if is_last:
                    self._put(found, len(self._held))
                break
            found.append(call)
            self._was_call = True
            self._held = self._held[length:]
        return found

    def _put(self, found: list[str | ToolCall], n: int) -> None:
        """The first n characters are text; after a call space is none."""
        text, self._held = self._held[:n], self._held[n:]
        if self._was_call:
            text = text.lstrip()
        if text:
            self._was_call = False
            found.append(text)

    def _call(self) -> tuple[ToolCall | None, int]:
        """The call at the beginning, and its length; None: it is not complete."""
        form, text = self._form, self._held
        name_at = len(self._mark)
        name_end = text.find(form.before_arguments, name_at)
        if name_end < 0 or "}" not in text:
            return None, 0
        begin = name_end + len(form.before_arguments)
        try:
            _, end = json.JSONDecoder().raw_decode(text, begin)
        except (ValueError, RecursionError):
            return None, 0
        if not text.startswith(form.end, end):
            return None, 0
        return ToolCall(text[name_at:name_end], text[begin:end]), end + len(form.end)


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of the text that begins the mark."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-n:]):
            return n
    return 0
