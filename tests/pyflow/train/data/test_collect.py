"""Answers depend on their numbers alone, and states are what the head gets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow.train.data import collect
from pyflow.train.data.answers import Answer
from pyflow.train.data.collect import Collector
from pyflow.train.data.prompts import passages_of, prompts

TEXT = "\n\n".join(f"Paragraph {i}: {' '.join(['some words of it.'] * 9)}" for i in range(30))


def written(model: pyflow.Model, n_parallel: int, there: dict[int, int]) -> dict[int, Answer]:
    collector = Collector(model, passages_of([TEXT]), seed=5, n_parallel=n_parallel, exit_layer=1)
    return {answer.number: answer for answer in collector.answers(150, there)}


def test_answers_do_not_depend_on_what_is_written_beside_them(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MOST_NEW", 16)
    with pyflow.load(tiny_path, n_threads=1) as model:
        many = written(model, 12, {})
        few = written(model, 2, {0: 16, 3: 16})
    assert sum(len(answer.drawn) for answer in many.values()) >= 150
    assert Counter(a.temperature == 0 for a in many.values())[True] >= len(many) // 2
    for number in few.keys() & many.keys():
        one, other = few[number], many[number]
        assert (one.prompt, one.drawn) == (other.prompt, other.drawn)
        np.testing.assert_array_equal(one.hidden, other.hidden)
        np.testing.assert_array_equal(one.features, other.features)
    assert {0, 3}.isdisjoint(few)
    assert {1, 2, 4, 5} <= few.keys()


def test_answers_on_their_way_are_cut_short_where_the_time_ends(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MOST_NEW", 16)
    with pyflow.load(tiny_path, n_threads=1) as model:
        whole = written(model, 4, {})
        collector = Collector(model, passages_of([TEXT]), seed=5, n_parallel=4)
        cut = [*collector.answers(150, {}, pace=lambda n_tokens: n_tokens >= 30)]
    assert 30 <= sum(len(answer.drawn) for answer in cut) < 40
    for answer in cut:
        n = len(answer.drawn)
        assert whole[answer.number].drawn[:n] == answer.drawn
        np.testing.assert_array_equal(whole[answer.number].hidden[:n], answer.hidden)


def test_states_are_inputs_of_the_head_and_features_those_of_the_next_layer(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MOST_NEW", 6)
    with pyflow.load(tiny_path, n_threads=1) as model:
        answer = next(iter(written(model, 2, {}).values()))
        tokens = [*answer.prompt, *answer.drawn]
        with model.context(len(tokens), n_batch=len(tokens)) as context:
            parents = np.arange(len(tokens) - 1) - 1
            features = context.exit_layer(tokens[:-1], parents, 0, 1)
            context.abort()
        logits = model.logits(tokens[:-1])[len(answer.prompt) - 1 :]
        head = model.checkpoint.array("output.weight").astype(np.float64)
    np.testing.assert_allclose(answer.features, features, rtol=1e-6)
    found = answer.hidden.astype(np.float64) @ head.T
    np.testing.assert_allclose(found, logits, atol=0.05)
    if answer.temperature == 0:
        assert logits.argmax(1).tolist() == answer.drawn


def test_no_prompt_comes_twice_and_passages_are_of_the_texts() -> None:
    passages = passages_of([TEXT, "x" * 4000, "short"])
    assert all(300 <= len(passage) <= 1400 for passage in passages)
    assert all(passage in TEXT for passage in passages if "x" * 9 not in passage)
    found = [prompt for prompt, _ in zip(prompts(passages, 1), range(500), strict=False)]
    assert len({*found}) == 500
    assert found == [prompt for prompt, _ in zip(prompts(passages, 1), range(500), strict=False)]
    share = sum(any(passage in prompt for passage in passages) for prompt in found) / 500
    assert 0.1 < share < 0.6
