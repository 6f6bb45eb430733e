"""Guesses of the last stage: those of heads in one place, handed on where the text agrees."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow import SamplingParams, _core
from pyflow.cluster.mpi.groups import Grouped
from pyflow.cluster.mpi.layers import Ranks, by_count, even
from pyflow.cluster.run.drafts import by_lookup
from pyflow.cluster.run.guesses import GuessesDrafter
from pyflow.cluster.run.stage import Beside, no_heads
from pyflow.cluster.run.threads import Follower, local_groups, local_stages
from pyflow.cluster.wire.messages import Accept, Drafted, DraftRequest, Guessed
from pyflow.errors import LinkError
from pyflow.specs.model_spec import ModelSpec
from pyflow.speculate.trained import files

from ...speculate.trained import speculators as made_up
from ...tiny_models import write_model
from ..conftest import Head

N_VOCAB, N_EMBD = 96, 64
GREEDY = SamplingParams(temperature=0, seed=0)


def request(keep: int, *tokens: int, guessed: Guessed | None, **more: Any) -> DraftRequest:
    given = {"n": 4, "least": 0.0, "n_ahead": 0} | more
    return DraftRequest(0, 1, keep, tokens, guessed=guessed, **given)


def tokens_of(drafted: Drafted) -> list[int]:
    assert len(drafted.tokens) == len(drafted.probabilities)
    return list(drafted.tokens)


def test_guesses_go_on_where_the_text_and_guesses_on_their_way_agree() -> None:
    drafter = GuessesDrafter(no_heads)
    drafter.begin(SamplingParams(seed=0), 0)
    guessed = Guessed(3, (14, 15, 16, 17), (0.9, 0.5, 0.2))
    assert tokens_of(drafter.answer(request(0, 11, 12, 13, guessed=None))) == []
    assert tokens_of(drafter.answer(request(3, 14, guessed=guessed))) == [15, 16, 17]
    assert drafter.answer(request(4, guessed=guessed, least=0.4)).probabilities == (0.9, 0.5)
    assert tokens_of(drafter.answer(request(4, guessed=guessed, n=1))) == [15]
    ahead = request(4, 15, guessed=guessed, n_ahead=1)
    assert tokens_of(drafter.answer(ahead)) == [16, 17]
    # The text went another way, or has not come as far as the guesses.
    assert tokens_of(drafter.answer(request(4, 19, guessed=guessed))) == []
    assert tokens_of(drafter.answer(request(3, guessed=guessed))) == []
    assert tokens_of(drafter.answer(request(3, 14, guessed=guessed, n=0))) == []


def test_the_chain_that_has_proved_more_often_right_is_taken() -> None:
    drafter = GuessesDrafter(no_heads, by_lookup(n_ctx=999, n_vocab=99))
    drafter.begin(SamplingParams(seed=0), 0)
    text: list[int] = []
    chosen = []
    for i in range(12):  # lookup says 4 after 1 2 3, and is wrong; the guess is right
        new = [1, 2, 3]
        guessed = Guessed(len(text) + 2, (3, 50 + i), (0.35,))
        chosen.append(tokens_of(drafter.answer(request(len(text), *new, guessed=guessed)))[:1])
        text += new
        drafter.answer(request(len(text), 50 + i, guessed=None, n=0))
        text.append(50 + i)
    assert chosen[1] == [50]  # what came last
    assert chosen[-3:] == [[59], [60], [61]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyflow.Model]:
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    write_model(path, n_layers=2, window=0, n_embd=N_EMBD, n_vocab=N_VOCAB)
    with pyflow.load(path, n_threads=1) as model:
        yield model


@pytest.fixture
def speculator(tmp_path: Path) -> Path:
    based = {"base_embedding": True, "embedding_scale": 2.0, "base_head": True}
    config = made_up.mlp_config(N_VOCAB, N_EMBD, 32, 3, pyflow=based)
    tokens = range(1, N_VOCAB, 3)
    tensors = made_up.mlp_tensors(N_VOCAB, N_EMBD, 32, 3, from_base=True, token_map=tokens)
    return made_up.write(tmp_path / "speculator", config, tensors)


def head(model: pyflow.Model, spec: ModelSpec, speculator: Path, n_stages: int) -> Head:
    stages = local_stages(
        model.checkpoint,
        spec,
        layers=even(2, n_stages),
        sampling=GREEDY,
        beside=Beside(lambda stage: files.load_heads(speculator, stage)),
        n_ctx=64,
        n_seq_max=2,
        n_batch=16,
    )
    return Head(stages, GREEDY, 0)


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_stage_guesses_as_in_one_place_after_what_it_has_drawn(
    model: pyflow.Model, speculator: Path, tied: bool
) -> None:
    spec, prompt = model.spec, [5, 6, 7, 8]
    if tied:
        spec = replace(spec, head=replace(spec.head, weight=spec.embedding.weight))
    one, two = (head(model, spec, speculator, n) for n in (1, 2))
    text, expected = list(prompt), []
    for _ in range(4):
        part = prompt if text == prompt else text[-1:]
        expected.append(one.run(part, len(text) - len(part), Accept(tuple(part)), n_guesses=9))
        text += expected[-1].draws
    assert all(len(result.guesses) == 3 for result in expected)
    if not tied:
        entry = _core.Entry(0, prompt, GREEDY.sampler(), hidden=[-1])
        with model.context(64) as context:
            (found,) = context.step([entry])
        here = files.load(speculator, model).heads
        tokens, parents, probabilities = here.draft(found.hidden, text[4], 3, 3, width=1)
        assert parents == [-1, 0, 1]
        assert expected[0].guesses == tuple(tokens)
        assert expected[0].probabilities == tuple(probabilities)
    first = two.run(prompt, 0, n_guesses=9)
    assert (first.draws, first.guesses) == (expected[0].draws, expected[0].guesses)
    assert first.probabilities == expected[0].probabilities
    assert two.run(text[4:5], 4, Accept(tuple(prompt))).guesses == ()
    # Two right tokens and a wrong one: guesses follow what was drawn after the second.
    wrong = (text[7] + 1) % N_VOCAB
    run = two.run([*text[5:7], wrong], 5, Accept((text[4],)), n_draws=3, n_guesses=2)
    assert list(run.draws[:2]) == text[6:8]
    assert run.guesses == expected[3].guesses[:2]


@contextmanager
def shared_head(
    model: pyflow.Model, spec: ModelSpec, speculator: Path, n_stages: int, n_members: int
) -> Iterator[Head]:
    hellos: Any = [None] * (n_stages * n_members)
    ranks = Ranks(hellos, spec, lambda: pytest.fail("nothing is measured"))
    placed = Grouped(by_count, n_members)(ranks)
    groups = local_groups(
        model.checkpoint,
        spec,
        layers=placed.layers,
        groups=placed.groups,
        n_threads=[1] * n_stages * n_members,
        sampling=GREEDY,
        beside=Beside(lambda stage: files.load_heads(speculator, stage)),
        n_ctx=64,
        n_seq_max=2,
        n_batch=16,
    )
    followers = [member for group in groups for member in group[1:]]

    def follow(member: Follower) -> None:
        with suppress(LinkError):
            member.follow()

    with ThreadPoolExecutor(len(followers)) as threads:
        for member in followers:
            threads.submit(follow, member)
        yield Head([group[0] for group in groups], GREEDY, 0)
        for member in followers:
            member.leave()


@pytest.mark.parametrize(("n_stages", "n_members", "tied"), [(1, 2, True), (2, 3, False)])
def test_the_first_member_of_the_last_stage_guesses_as_in_one_place(
    model: pyflow.Model, speculator: Path, n_stages: int, n_members: int, tied: bool
) -> None:
    spec, prompt = model.spec, [5, 6, 7, 8]
    if tied:
        spec = replace(spec, head=replace(spec.head, weight=spec.embedding.weight))
    one = head(model, spec, speculator, 1)
    with shared_head(model, spec, speculator, n_stages, n_members) as members:
        text = list(prompt)
        for _ in range(3):
            part = prompt if text == prompt else text[-1:]
            how: Any = {"n_guesses": 9}
            expected = one.run(part, len(text) - len(part), Accept(tuple(part)), **how)
            found = members.run(part, len(text) - len(part), Accept(tuple(part)), **how)
            assert found == expected
            assert len(found.guesses) == 3
            text += expected.draws
