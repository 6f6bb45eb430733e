"""Expressions in specs: the values of Python's, for the little of Python that they are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.specs.language.expression import UnresolvedError, parse
from pyflow.specs.language.functions import ExpressionError

from ....work import at_most


class Names(dict[str, Any]):
    def fact(self, name: str) -> Any:
        if name not in self:
            raise UnresolvedError(name)
        return self[name]

    def has_tensor(self, name: str) -> bool:
        return name in ("norm.weight",)


NAMES = Names(
    n=12, x=2.5, yes=True, no=False, word="full", types=["a", "b", 3], zero=0, sizes={"3": {"a": 1}}
)


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2 * 3 - 4",
        "(1 + 2) * 3",
        "n // 5 + n % 5",
        "-n // 5",
        "-2 ** 2",
        "2 ** -1",
        "2 ** 3 ** 2",
        "--n",
        "1e3 / 2.5",
        "n / 4",
        "n == 12 and x > 2",
        "no or not no",
        "not yes == no",
        "yes and no or yes",
        "1 if n % 2 == 0 else 2 if n % 3 == 0 else 3",
        "(1 if no else 2) + 1",
        "3 in types and not 'c' in types",
        "types[1]",
        "types[n - 10] * 2",
        "word == 'full'",
        "word != 'full' or x <= 2.5",
        "min(n, 3, x)",
        "max(n, 3)",
        "'a' if yes else 'b'",
    ],
)
def test_the_value_is_that_of_python(text: str) -> None:
    value = parse(text).evaluate(NAMES)
    expected = eval(text, {}, dict(NAMES))
    assert value == expected
    assert type(value) is type(expected)


def test_words_of_its_own() -> None:
    assert parse("sqrt(n + 4)").evaluate(NAMES) == 4.0
    assert parse("true").evaluate(NAMES) is True
    assert parse("has('norm.weight') and not has('other')").evaluate(NAMES) is True
    assert parse("quantile(0.95)").evaluate(NAMES) == pytest.approx(1.6448536269514722)
    assert parse("each(types, 1)").evaluate(NAMES) == NAMES["types"][1]
    assert parse("each(n, 1)").evaluate(NAMES) == NAMES["n"]
    assert parse("last(types, types[0], 3)").evaluate(NAMES) == max(
        i for i, kind in enumerate(NAMES["types"][:3]) if kind == NAMES["types"][0]
    )
    assert parse("only(sizes[3], 'a', 'b')").evaluate(NAMES) is True
    assert parse("only(sizes[3], 'b')").evaluate(NAMES) is False
    assert parse("n + x * n").names == ("n", "x")


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("", "value"),
        ("1 +", "character 4"),
        ("(1", "')'"),
        ("1 2", "2"),
        ("n.real", ".real"),
        ("open('x')", "open()"),
        ("n(1)", "n()"),
        ("[1, 2]", "["),
        ("1 < n < 3", "<"),
        ("1 if n", "'else'"),
        ("'a", "'a"),
        ('"a"', '"a"'),
        ("lambda: 1", ":"),
        ("n @ n", "@"),
        ("x = 1", "= 1"),
        ("1 if yes else", "character 14"),
        ("sqrt()", "character 6"),
        ("sqrt(1, 2)", "sqrt()"),
        ("ünïcode", "ünïcode"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, mentions: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    assert mentions in str(error.value)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("1 / zero", "zero"),
        ("n % zero", "zero"),
        ("10 ** 400", "large"),
        ("10.0 ** 400", "large"),
        ("99999999999999999999999", "large"),
        ("1e400", "finite"),
        ("(-1) ** 0.5", "real"),
        ("0 ** -1", "zero"),
        ("sqrt(-1)", "real"),
        ("word + 1", "'full'"),
        ("yes + 1", "True"),
        ("1 if n else 2", "12"),
        ("not n", "12"),
        ("types[3]", "3"),
        ("types[-1]", "-1"),
        ("types[yes]", "True"),
        ("n[0]", "12"),
        ("3 in n", "12"),
        ("has(n)", "12"),
        ("quantile(1)", "quantile"),
        ("last(types, n, 2)", "among the first 2"),
        ("last(n, n, 2)", "last(list"),
        ("only(n, 'a')", "table"),
        ("each(types, 9)", "9"),
        ("word < 'g'", "full"),
    ],
)
def test_what_has_no_value_is_refused(text: str, mentions: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text).evaluate(NAMES)
    assert mentions in str(error.value)


def test_unknown_names_do_not_resolve() -> None:
    with pytest.raises(UnresolvedError):
        parse("1 + other").evaluate(NAMES)
    assert parse("1 if yes else other").evaluate(NAMES) == 1  # what is not asked for
    assert parse("no and other").evaluate(NAMES) is False


@pytest.mark.parametrize(
    "text",
    [
        "(" * 350,
        "(" * 190 + "1" + ")" * 190,
        "-" * 399 + "1",
        "not " * 99 + "yes",
        "2 ** " * 79 + "2",
        "2 ** -" * 65 + "2",
        "types[" * 60 + "0" + "]" * 60,
        "1 if yes else " * 28 + "1",
        "9 ** 9 ** 9 ** 9 ** 9",
        "9" * 399,
        "1 +" * 133 + "1",
        "1" * 401,
        "min(" * 90 + "1",
    ],
)
def test_hostile_ones_end_at_once(text: str) -> None:
    with at_most(100_000), suppress(ExpressionError):
        parse(text).evaluate(NAMES)


_NAMES = ["n", "x", "yes", "word", "types", "1", "2.5", "0", "'a'"]
_MARKS = ["+", "-", "*", "/", "//", "%", "**", "(", ")", "[", "]", ",", "==", "<", ".", "@"]
_WORDS = ["if", "else", "and", "or", "not", "min(", "has("]
_PIECES = st.sampled_from([*_NAMES, *_MARKS, *_WORDS])


@given(st.lists(_PIECES, max_size=14).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_any_text_has_a_value_or_ends_in_its_error(text: str) -> None:
    try:
        value = parse(text).evaluate(NAMES)
    except (ExpressionError, UnresolvedError):
        return
    assert isinstance(value, bool | int | float | str | list)
