"""Masks after a text and after each draft: no token is missing, and none too many."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyflow.constrain import Constraint, Grammars, Matcher
from pyflow.errors import ConstraintError, MatcherError
from pyflow.tokenizer import Tokenizer, from_folder

from ..generate.students import write_tokenizer
from .conftest import N_PADDING, tokens_of

pytestmark = pytest.mark.model
PERSON = Constraint.json_schema(
    {
        "type": "object",
        "properties": {"full_name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["full_name", "age"],
        "additionalProperties": False,
    }
)
TEXT = '{"full_name": "Ann", "age": 3}'


def test_masks_of_a_tree_are_those_of_its_paths(grammars: Grammars, tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    matcher = grammars.matcher(PERSON)
    end = max(tokenizer.stop_ids)
    for token in [*tokenizer.encode(TEXT, add_special=False), end]:
        tokens: list[int] = []
        parents: list[int] = []
        plain: list[Matcher | None] = []
        rows = [matcher.masks()[0]]
        for node in range(12):
            parent = rng.randrange(-1, node)
            before = matcher if parent < 0 else plain[parent]
            allowed = tokens_of(rows[1 + parent]) if before is not None else [7]
            tokens.append(rng.choice([*rng.choices(allowed, k=3), 7, end, token]))
            parents.append(parent)
            after = before.copy() if before is not None else None
            try:
                if after is not None:
                    after.accept([tokens[-1]])
            except MatcherError:
                after = None
            plain.append(after)
            everything = np.full_like(rows[0], 0xFFFFFFFF)
            rows.append(everything if after is None else after.masks()[0])
        masks = matcher.masks(tokens, parents)
        for node, (row, expected) in enumerate(zip(masks, rows, strict=True), -1):
            if node < 0 or tokens[node] not in tokenizer.stop_ids:
                np.testing.assert_array_equal(row, expected)
        expected_nodes = [node for node, after in enumerate(plain) if after is not None]
        assert matcher.allowed(tokens, parents) == expected_nodes
        np.testing.assert_array_equal(matcher.masks()[0], rows[0])  # nothing was moved
        matcher.accept([token])


def test_a_text_ends_only_where_the_grammar_does(grammars: Grammars, tokenizer: Tokenizer) -> None:
    matcher = grammars.matcher(Constraint.regex("ab(cd)?"))
    for text, may_end in (("", False), ("a", False), ("b", True), ("c", False), ("d", True)):
        matcher.accept(tokenizer.encode(text, add_special=False))
        allowed = {*tokens_of(matcher.masks()[0])}
        assert matcher.is_done is may_end
        assert allowed & tokenizer.stop_ids == (tokenizer.stop_ids if may_end else set())
        if not may_end:
            with pytest.raises(MatcherError):
                matcher.copy().accept([min(tokenizer.stop_ids)])
    assert allowed == {*tokenizer.stop_ids}
    matcher.accept([min(tokenizer.stop_ids)])
    with pytest.raises(MatcherError):
        matcher.accept([min(tokenizer.stop_ids)])


def test_control_tokens_and_padding_are_never_drawn(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    n_vocab = tokenizer.n_vocab + N_PADDING
    mask = grammars.matcher(Constraint.regex("(?s:.*)")).masks()
    assert mask.shape == (1, -(-n_vocab // 32))
    allowed = {*tokens_of(mask[0])}
    assert max(allowed) < tokenizer.n_vocab
    assert {t for t in allowed if tokenizer.is_control(t)} <= tokenizer.stop_ids <= allowed
    assert len(allowed) > tokenizer.n_vocab // 2


def test_forced_tokens_may_come(grammars: Grammars, tokenizer: Tokenizer) -> None:
    matcher = grammars.matcher(PERSON)
    seen = b""
    for token in tokenizer.encode(TEXT, add_special=False):
        before = matcher.masks()
        forced = matcher.forced()
        np.testing.assert_array_equal(matcher.masks(), before)
        assert len(matcher.allowed(forced, range(-1, len(forced) - 1))) == len(forced)
        seen += tokenizer.decode_bytes(forced) + b"|"
        matcher.accept([token])
    assert b"full_name" in seen
    assert b"age" in seen


def test_what_was_written_before_is_guessed_again(grammars: Grammars, tokenizer: Tokenizer) -> None:
    schema = {"type": "array", "items": {"type": "object", "required": ["a", "b"]}}
    schema["items"]["properties"] = {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}}
    matcher = grammars.matcher(Constraint.json_schema(schema))
    tokens = tokenizer.encode('[{ "a" :1, "b":\n3},{ "a" :1', add_special=False)
    n_right = 0
    for i, token in enumerate(tokens):
        matcher.masks()
        guessed = matcher.forced()
        n_right += guessed[:1] == tokens[i : i + 1]
        matcher.take(token)
    assert n_right > 4


@pytest.mark.parametrize(
    "pattern", ["^(a{1,1000}){1,1000}$", "^(a|aa|ab?){1,900}(a{1,500}b?){1,500}$"]
)
def test_patterns_that_explode_never_lose_the_mask(
    grammars: Grammars, tokenizer: Tokenizer, pattern: str
) -> None:
    matcher = grammars.matcher(Constraint.json_schema({"type": "string", "pattern": pattern}))
    (quote,) = tokenizer.encode('"', add_special=False)
    (a,) = tokenizer.encode("a", add_special=False)
    matcher.accept([quote])

    def write() -> None:
        for _ in range(400):
            allowed = {*tokens_of(matcher.masks()[0])}
            assert all(set(tokenizer.token_bytes(t)) <= set(b'ab"') for t in allowed)
            matcher.accept([a])

    with pytest.raises(MatcherError):
        write()
    for again in (matcher.masks, matcher.forced, matcher.copy().masks):
        with pytest.raises(MatcherError):
            again()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint.json_schema({"$ref": "#"}),
        lambda: Constraint.regex("[^\\s\\S]"),
        lambda: Constraint.json_schema(
            {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(2000)}}
        ),
    ],
    ids=["endless", "empty", "crowded"],
)
def test_what_fails_at_its_beginning_is_refused(
    grammars: Grammars, make: Callable[[], Constraint]
) -> None:
    with pytest.raises(ConstraintError):
        grammars.matcher(make())


def test_a_blank_before_each_text_is_no_part_of_the_grammar(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json", 4)
    told = json.loads((tmp_path / "tokenizer.json").read_text())
    told["model"]["vocab"] += [["w", -5.0], ["3", -6.0], ['\u2581"', -7.0]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    tokenizer = from_folder(tmp_path)
    grammars = Grammars(tokenizer, tokenizer.n_vocab)
    for pattern in ("w3 w2", "w[34]", "(w|x)3 w3"):
        matcher, made = grammars.matcher(Constraint.regex(pattern)), b""
        while not matcher.is_done:
            token = tokens_of(matcher.masks()[0])[0]
            matcher.accept([token])
            made += tokenizer.token_bytes(token)
        assert re.fullmatch(pattern, made.decode())
    for unwritten in ("x3", '"'):
        with pytest.raises(ConstraintError):
            grammars.matcher(Constraint.regex(unwritten))


def test_compiled_grammars_are_kept_and_independent(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    first, second = grammars.matcher(PERSON), grammars.matcher(PERSON)
    first.accept(tokenizer.encode('{"', add_special=False))
    np.testing.assert_array_equal(second.masks(), grammars.matcher(PERSON).masks())
    assert not np.array_equal(first.masks(), second.masks())
