"""What a text is held to, and its grammar in the library's language."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pyflow.constrain import gbnf, lark, schema
from pyflow.constrain.blame import place_of_fault
from pyflow.constrain.json_text import MAX_CHARS, MAX_NBYTES, refuse
from pyflow.constrain.library import JSON_OPTIONS, fault_of, llguidance
from pyflow.errors import ConstraintError

Kind: TypeAlias = Literal["json_schema", "json_object", "regex", "lark", "gbnf", "choice", "calls"]

_NAMES: dict[Kind, str] = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
    "choice": "choice",
    "calls": "calls",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A way to call a tool: `begin`, a JSON value of the schema, `end`."""

    begin: str
    """Begins with the trigger."""
    schema: str
    end: str = ""


@dataclass(frozen=True, slots=True)
class Calls:
    """Free text until the trigger, then one of the calls, then free text again."""

    trigger: str
    """Text, or a control token's spelling."""
    calls: tuple[Call, ...]
    required: bool = False
    """The text is one or more calls and nothing else."""
    many: bool = True
    """Whether a required call may be followed by others."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a text is held to: the kind of a grammar, and its source.

    Made by the functions below, which check what can be checked without a vocabulary, and raise
    ConstraintError; UnsupportedError if llguidance is not installed.
    """

    kind: Kind
    source: str | tuple[str, ...] | Calls

    def __post_init__(self) -> None:
        check = _CHECKS.get(self.kind)
        if check is None:
            raise ConstraintError(f"constraint: expected {', '.join(_NAMES)}, found {self.kind!r}")
        check(self.source)

    @property
    def name(self) -> str:
        """For people: JSON schema, GBNF grammar."""
        return _NAMES[self.kind]

    @classmethod
    def json_schema(cls, source: str | Mapping[str, Any]) -> Constraint:
        """A JSON value that a schema allows; see `constrain.schema` for its keywords."""
        if not isinstance(source, str):
            try:
                source = json.dumps(source, ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise ConstraintError(f"JSON schema: expected JSON, found: {error}") from None
        return cls("json_schema", source)

    @classmethod
    def json_object(cls) -> Constraint:
        """Any JSON object."""
        return cls("json_object", "")

    @classmethod
    def regex(cls, source: str) -> Constraint:
        """Text that a regular expression matches as a whole."""
        return cls("regex", source)

    @classmethod
    def lark(cls, source: str) -> Constraint:
        """Text of a Lark grammar, from its rule `start`."""
        return cls("lark", source)

    @classmethod
    def gbnf(cls, source: str) -> Constraint:
        """Text of a grammar as llama.cpp writes them, from its rule `root`."""
        return cls("gbnf", source)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Constraint:
        """One of these texts."""
        if isinstance(texts, str):
            raise ConstraintError(f"choice: expected several texts, found {texts!r:.60}")
        return cls("choice", tuple(texts))

    def grammar(self, special: Callable[[str], int | None] = lambda _: None) -> str:
        """In the library's language. special: the control token with this spelling, if any."""
        library = llguidance().LLMatcher
        match self.source:
            case str() as text if self.kind in ("json_schema", "json_object"):
                enforced = schema.read(text).enforced if text else {"type": "object"}
                return _json_grammar(enforced)
            case str() as text if self.kind == "regex":
                return str(library.grammar_from_regex(text))
            case str() as text:
                text = gbnf.written(gbnf.parse(text)) if self.kind == "gbnf" else text
                return str(library.grammar_from_lark(text))
            case Calls() as calls:
                text = lark.of_calls(
                    calls.trigger,
                    [(c.begin, _with_options(c.schema), c.end) for c in calls.calls],
                    required=calls.required,
                    many=calls.many,
                    special=special(calls.trigger),
                )
                return str(library.grammar_from_lark(text))
            case texts:
                return str(library.grammar_from_lark(lark.of_choice(texts)))


def _json_grammar(enforced: dict[str, Any]) -> str:
    text = json.dumps(enforced)
    library = llguidance().LLMatcher
    return str(library.grammar_from_json_schema(text, overrides=JSON_OPTIONS))


def _with_options(text: str) -> dict[str, Any]:
    """A call's schema, which stands inside a grammar."""
    return {**schema.read(text).enforced, "x-guidance": JSON_OPTIONS}


def _check_text(kind: Kind, text: object, n_taken: int = 0) -> str:
    name = _NAMES[kind]
    if not isinstance(text, str):
        raise ConstraintError(f"{name}: expected text, found {text!r:.60}")
    if "\0" in text:
        raise ConstraintError(f"{name}: expected text without NUL")
    try:
        n = n_taken + len(text.encode())
    except UnicodeEncodeError:
        raise ConstraintError(f"{name}: expected whole characters, found a surrogate") from None
    if n > MAX_NBYTES:
        raise ConstraintError(f"{name}: expected up to {MAX_NBYTES:,} bytes, found {n:,}")
    return text


def _check_grammar(kind: Kind, grammar: str) -> None:
    if fault := fault_of(grammar):
        raise ConstraintError(f"{_NAMES[kind]}: {fault:.300}")


def _check_schema(source: object) -> None:
    text = source if isinstance(source, str) else ""
    found = schema.read(text)
    if fault := fault_of(_json_grammar(found.enforced)):
        path, reason = place_of_fault(found)
        refuse(path, f"{reason or fault:.300}")


def _check_object(source: object) -> None:
    if source != "":
        raise ConstraintError(f"JSON object: expected no source, found {source!r:.60}")


def _check_regex(source: object) -> None:
    text = _check_text("regex", source)
    _check_grammar("regex", str(llguidance().LLMatcher.grammar_from_regex(text)))


def _check_lark(source: object) -> None:
    text = _check_text("lark", source)
    lark.check(text)
    _check_grammar("lark", str(llguidance().LLMatcher.grammar_from_lark(text)))


def _check_gbnf(source: object) -> None:
    text = gbnf.written(gbnf.parse(_check_text("gbnf", source)))
    if fault_of(str(llguidance().LLMatcher.grammar_from_lark(text))):
        raise ConstraintError(
            "GBNF grammar: it is too large for the matcher; use fewer rules and repetitions"
        )


def _check_choice(source: object) -> None:
    if not isinstance(source, tuple) or not source:
        raise ConstraintError(f"choice: expected at least one text, found {source!r:.60}")
    n = 0
    for text in source:
        if text == "":
            raise ConstraintError("choice: expected texts that are not empty")
        n += len(_check_text("choice", text, n))
        if len(text) > MAX_CHARS:
            raise ConstraintError(
                f"choice: expected up to {MAX_CHARS:,} characters, found {len(text):,}"
            )
    llguidance()


def _check_calls(source: object) -> None:
    if not isinstance(source, Calls) or not source.calls:
        raise ConstraintError(f"calls: expected at least one, found {source!r:.60}")
    if not _check_text("calls", source.trigger):
        raise ConstraintError("calls: trigger: expected text, found nothing")
    n = 0
    for call in source.calls:
        if not _check_text("calls", call.begin).startswith(source.trigger):
            raise ConstraintError(
                f"calls: begin: expected to begin with {source.trigger!r}, found {call.begin!r:.60}"
            )
        n += len(_check_text("calls", call.schema + _check_text("calls", call.end), n))
        _check_schema(call.schema)


_CHECKS: dict[str, Callable[[object], None]] = {
    "json_schema": _check_schema,
    "json_object": _check_object,
    "regex": _check_regex,
    "lark": _check_lark,
    "gbnf": _check_gbnf,
    "choice": _check_choice,
    "calls": _check_calls,
}
