"""Kinds of constraints: what each allows, what is refused, what an absent library says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

import pytest

from pyflow.constrain import Call, Calls, Constraint, Grammars
from pyflow.errors import ConstraintError, MatcherError, UnsupportedError
from pyflow.tokenizer import Tokenizer

pytestmark = pytest.mark.model
CALL = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"const": "weather"}, "city": {"enum": ["Rome", "Oslo"]}},
        "required": ["name", "city"],
        "additionalProperties": False,
    }
)
BEGIN, JSON, END = "<tool_call>\n", '{"name": "weather", "city": "Oslo"}', "\n</tool_call>"


RULES = "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(3000)), 'r3000: "x"'])


@pytest.fixture
def allows(grammars: Grammars, tokenizer: Tokenizer) -> Callable[[Constraint, str], bool]:
    """Whether a text may be written to its end."""

    def check(constraint: Constraint, text: str) -> bool:
        matcher = grammars.matcher(constraint)
        tokens = tokenizer.encode(text, add_special=False)
        try:
            matcher.accept(tokens)
        except MatcherError:
            return False
        return matcher.is_done

    return check


def test_texts_are_those_of_the_grammar(texts: Callable[..., list[str]]) -> None:
    for constraint, pattern in (
        (Constraint.regex(r"[a-c]{2,4}(é|[0-9])"), r"[a-c]{2,4}(é|[0-9])"),
        (Constraint.lark('start: "a" b+\nb: "<b>" | /[0-9]+/'), "a(<b>|[0-9]+)+"),
        (Constraint.gbnf('root ::= "yes" tail\ntail ::= [!?]*'), "yes[!?]*"),
        (Constraint.choice(['a"b', "c\\n\n", "/d/", "é"]), 'a"b|c\\\\n\n|/d/|é'),
    ):
        for text in texts(constraint, 5):
            assert re.fullmatch(pattern, text), text
    many = [f"text number {i} of many" for i in range(4000)]
    assert {*texts(Constraint.choice(many), 3)} <= {*many}
    for text in texts(Constraint.json_object(), 5):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("required", [False, True])
def test_free_text_goes_on_until_the_trigger(
    allows: Callable[[Constraint, str], bool], required: bool
) -> None:
    calls = Calls(
        "<tool_call>", (Call(BEGIN, CALL, END), Call(BEGIN, '{"const": 1}', END)), required
    )
    constraint = Constraint("calls", calls)
    call = BEGIN + JSON + END
    assert allows(constraint, call)
    assert allows(constraint, call + "\n" + BEGIN + "1" + END)
    for spoken in ("", "Hello.", f"Let me see. {call}", f"{call} Done."):
        assert allows(constraint, spoken) is not required
    for wrong in ("<tool_call>", "<tool_call> x", BEGIN + JSON.replace("Oslo", "Bern") + END):
        assert not allows(constraint, wrong)


def test_a_required_call_may_be_the_only_one(
    allows: Callable[[Constraint, str], bool],
) -> None:
    calls = Calls("<tool_call>", (Call(BEGIN, CALL, END),), required=True, many=False)
    constraint, call = Constraint("calls", calls), BEGIN + JSON + END
    assert allows(constraint, call)
    for wrong in (call + call, f"{call}\n{call}", f"{call} Done.", ""):
        assert not allows(constraint, wrong)


def test_a_control_token_may_be_a_trigger(grammars: Grammars, tokenizer: Tokenizer) -> None:
    (trigger,) = tokenizer.encode("<|im_start|>", add_special=False, parse_special=True)
    constraint = Constraint("calls", Calls("<|im_start|>", (Call("<|im_start|>", CALL),)))
    matcher = grammars.matcher(constraint)
    matcher.accept([*tokenizer.encode("So:", add_special=False), trigger])
    assert not matcher.is_done
    matcher.accept(tokenizer.encode(JSON, add_special=False))
    assert matcher.is_done
    with pytest.raises(MatcherError):  # as text it is none
        grammars.matcher(Constraint.regex("<\\|im_start\\|>")).accept([trigger])


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "(?=a)b"),
        ("regex", "("),
        ("regex", "a\0"),
        ("regex", "a" * 300_000),
        ("lark", ""),
        ("lark", "start: x"),
        ("lark", RULES),
        ("gbnf", RULES.replace("start:", "root:").replace(":", " ::=")),
        ("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
        ("lark", 'start: "a" %json {"minLenght": 3}'),
        ("lark", '%llguidance {"allow_invalid_utf8": true}\nstart: /.*/'),
        ("lark", "start: <|im_end|>"),
        ("lark", 'start: "a" // "\n <[2]>'),
        ("lark", "start: /a/ <[*]>"),
        ("lark", 'start: a "c"\na[stop="b"]: /a+/'),
        ("lark", "start: a\na[lazy, max_tokens=3]: /a+/"),
        ("lark", "start: @other"),
        ("gbnf", ""),
        ("gbnf", 'root ::= "a" ['),
        ("gbnf", "root ::= " + "(" * 20_000),
        ("choice", ()),
        ("choice", ("a", "")),
        ("choice", ("a" * 200_000, "b" * 200_000)),
        ("calls", Calls("<a>", ())),
        ("calls", Calls("", (Call("", CALL),))),
        ("calls", Calls("<a>", (Call("<b>", CALL),))),
        ("calls", Calls("<a>", (Call("<a>", '{"minLenght": 3}'),))),
        ("poem", "x"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_other_grammars_are_refused(kind: str, source: object) -> None:
    with pytest.raises(ConstraintError):
        Constraint(kind, source)  # type: ignore[arg-type]


def test_code_in_quotes_and_comments_is_none(allows: Callable[[Constraint, str], bool]) -> None:
    grammar = '%llguidance {}\nstart: "<|im_end|>" /[<@]+>/ // %json <x>\n# a[stop=3]\n'
    assert allows(Constraint.lark(grammar), "<|im_end|>@<>")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'pyflow-llm\[serve\]'"):
        Constraint.json_object().grammar()
    with pytest.raises(UnsupportedError):
        Constraint.json_schema("{}")
