"""Chat templates: from messages to the text, and the tokens, that a model was trained on."""

from __future__ import annotations

import copy
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from jinja2 import TemplateError

from pyflow.chat.guardrail import guarded
from pyflow.chat.meter import MAX_SIZE
from pyflow.chat.sandbox import (
    FUNCTIONS,
    RefusedError,
    compile_template,
    render,
    variables_of,
)
from pyflow.errors import FormatError, GenerationWarning, PyflowError, UnsupportedError
from pyflow.text import printable
from pyflow.tokenizer import Tokenizer

Message = Mapping[str, object]

KEY = "tokenizer.chat_template"
# Characters of all messages; the template may add as many.
_MAX_CHARS = MAX_SIZE // 2
# A role often becomes part of a control token, so it may not contain the rest of one.
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Private use characters of the last plane stand for the first characters of control tokens.
_STAND_INS = range(0x10F000, 0x10FFFE)
# What `render` gives every template.
_OWN = {"messages", "add_generation_prompt", "bos_token", "eos_token", *FUNCTIONS}
# A system message that a template shows, if it shows any.
_PROBE = "system message probe"


class ChatTemplate:
    """A model's chat template. Safe to share between threads."""

    def __init__(
        self,
        text: str,
        tokenizer: Tokenizer,
        *,
        source: str,
        names: Mapping[str, object] | None = None,
    ) -> None:
        """Compiles `text`; FormatError, naming `source`, if it is not a template. names: further
        variables of the template, such as `pad_token`."""
        self._tokenizer = tokenizer
        self._source = source
        self._text = text
        self._told = False  # of a system message that was moved
        self._guardrail = False
        self._names: dict[str, object] = dict(names or {})
        try:
            self._template = compile_template(text)
        except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            raise self._error(error) from None

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], tokenizer: Tokenizer, *, source: str
    ) -> ChatTemplate:
        """The template in a GGUF file's metadata."""
        text = metadata.get(KEY)
        if not isinstance(text, str):
            raise FormatError(f"{source}: {KEY}: expected text, found {text!r}")
        return cls(text, tokenizer, source=f"{source}: {KEY}")

    @property
    def text(self) -> str:
        """The template itself."""
        return self._text

    def using(self, variables: Mapping[str, object]) -> ChatTemplate:
        """The same template with further variables, such as `enable_thinking`.

        PyflowError: one that the template does not use, or whose value is not the caller's to give.
        """
        used = variables_of(self._text) - _OWN if variables else frozenset()
        for name in variables:
            if name in _OWN:
                raise PyflowError(f"{name}: is set for every conversation; leave it out")
            if name not in used:
                known = ", ".join(sorted(used)) or "no variables"
                raise PyflowError(
                    f"{name}: the template does not use it, so it would have no effect; "
                    f"{self._source} uses {printable(known):.200}"
                )
        copied = copy.copy(self)
        copied._names = {**self._names, **variables}
        return copied

    def guarded(self) -> ChatTemplate:
        """The same template for conversations with the guardrail in front; see `guardrail`."""
        copied = copy.copy(self)
        copied._guardrail = True
        return copied

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text of the conversation, for people to read; for the model, see `encode`.

        `add_generation_prompt` ends it with the opening of the assistant's turn. `variables` are
        further names for the template, such as `tools`.
        """
        names = {
            "tools": None,
            "documents": None,
            **self._names,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._token_text(self._tokenizer.bos_id),
            "eos_token": self._token_text(self._tokenizer.eos_id),
            **(variables or {}),
        }
        try:
            return render(self._template, names)
        except RefusedError as error:
            raise UnsupportedError(f"{self._source} refuses: {_line(error)}") from None
        # A template can fail in any way that Python can: dividing by zero, calling a number, ...
        except Exception as error:
            raise self._error(error) from None

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
        prefill: str = "",
        tell: Callable[[str], None] | None = None,
    ) -> list[int]:
        """The tokens of the conversation, with BOS once if the vocabulary asks for it.

        prefill: how the answer begins; it stands behind the rendered text. A system message that
        the template refuses or drops is put before the first question; `tell` gets a sentence
        about it, and without `tell` there is a GenerationWarning, once.

        The template's control tokens are encoded as such. In messages they are plain text: a user
        who writes "<|im_end|>" does not end the turn. Messages without such text give exactly the
        tokens of the whole rendered text.
        """
        check_messages(messages)
        if self._guardrail:
            messages = guarded(messages)
        n_chars = sum(map(len, _texts(messages)))
        if n_chars > _MAX_CHARS:
            raise PyflowError(
                f"messages: expected up to {_MAX_CHARS:,} characters, found {n_chars:,}; shorten "
                "them, or use 'pyflow generate --raw'"
            )
        shield = _Shield(self._tokenizer, self._text, messages, variables, prefill)
        shielded = cast("Mapping[str, object]", shield(dict(variables or {})))
        text, moved = self._with_system(
            cast("Sequence[Message]", shield(messages)),
            lambda shown: self.render(
                shown, add_generation_prompt=add_generation_prompt, variables=shielded
            ),
        )
        if moved:
            self._tell(tell)
        ids = self._tokenizer.encode(
            text + cast(str, shield(prefill)),
            add_special=False,
            parse_special=True,
            literal=shield.literal,
        )
        if not ids:
            raise FormatError(f"{self._source}: expected a text of these messages, found none")
        bos = self._tokenizer.bos_id
        if self._tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _with_system(
        self, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
    ) -> tuple[str, bool]:
        """The text of messages, and whether it has the system message before the first question,
        because the template refuses or drops it."""
        moved = _before_question(messages)
        if moved is None:
            return render(messages), False
        try:
            text = render(messages)
        except UnsupportedError as refusal:
            try:
                return render(moved), True
            except PyflowError:
                raise refusal from None
        try:
            is_shown = _PROBE in render([{**messages[0], "content": _PROBE}, *messages[1:]])
        except PyflowError:
            is_shown = True  # it depends on what the message says
        return (text, False) if is_shown else (render(moved), True)

    def _tell(self, tell: Callable[[str], None] | None) -> None:
        message = (
            f"{self._source}: has no place for a system message; it stands before the first "
            "question instead"
        )
        if tell is not None:
            tell(message)
        elif not self._told:
            self._told = True
            warnings.warn(message, GenerationWarning, stacklevel=3)

    def _token_text(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token_text(token)

    def _error(self, error: BaseException) -> FormatError:
        where = getattr(error, "lineno", None)
        line = f", line {where}" if where else ""
        return FormatError(f"{self._source}{line}: {_line(error)}")


def check_messages(messages: Sequence[Message]) -> None:
    """FormatError unless each of `messages` has a role that is a plain name."""
    for i, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise FormatError(
                f"message {i}: role: expected a name such as 'user' or 'assistant', found {role!r}"
            )


def _before_question(messages: Sequence[Message]) -> list[Message] | None:
    """The messages with the system message at the head of the first question; None if there is none
    of them, or they are not plain text."""
    if not messages or messages[0].get("role") != "system":
        return None
    system, rest = messages[0].get("content"), list(messages[1:])
    first = next((i for i, message in enumerate(rest) if message.get("role") == "user"), None)
    if first is None or not isinstance(system, str):
        return None
    question = rest[first].get("content")
    if not isinstance(question, str):
        return None
    rest[first] = {**rest[first], "content": f"{system}\n\n{question}"}
    return rest


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Shield:
    """Copies users' text so that it contains no control token.

    The first character of each control token's text is replaced by a stand-in that occurs nowhere
    else; `literal` maps stand-ins back after special tokens have been found. Text without control
    tokens is not changed.
    """

    def __init__(self, tokenizer: Tokenizer, *sources: object) -> None:
        self._tokenizer = tokenizer
        used = set(itertools.chain.from_iterable(_texts(sources)))
        self._free = (chr(c) for c in _STAND_INS if chr(c) not in used)
        self._stand_ins: dict[str, str] = {}

    @property
    def literal(self) -> dict[int, str]:
        return {ord(stand_in): char for char, stand_in in self._stand_ins.items()}

    def __call__(self, value: object) -> object:
        if isinstance(value, str):
            return self._shield(value)
        if isinstance(value, Mapping):
            return {self(key): self(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self(item) for item in value]
        return value

    def _shield(self, text: str) -> str:
        chars = list(text)
        for start in self._tokenizer.control_starts(text):
            first = text[start]
            if first not in self._stand_ins:
                self._stand_ins[first] = next(self._free)
            chars[start] = self._stand_ins[first]
        return "".join(chars)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in _texts(item)]
    if isinstance(value, Sequence):
        return [text for item in value for text in _texts(item)]
    return []
