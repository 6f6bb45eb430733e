"""A model in several stages writes, chunk by chunk, what it writes in one place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, cast

import pytest

from pyflow import ChatSession, PyflowError, SamplingParams
from pyflow.cluster.model import PipelinedModel, in_threads
from pyflow.cluster.mpi.layers import Placement, Ranks, given
from pyflow.cluster.run.drafts import MethodDrafter, by_lookup
from pyflow.cluster.run.strategy import NAMES, named
from pyflow.cluster.supervise.journal import Journal
from pyflow.cluster.wire.surveys import Group
from pyflow.errors import ShapeError
from pyflow.generate.session import Turn
from pyflow.speculate.entry import Speculation
from pyflow.speculate.methods import made

from .conftest import Rig

pytestmark = pytest.mark.model

PROMPTS = [
    "Repeat: red green blue red green blue red green blue red",
    "The history of the Roman empire begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
]
GREEDY = SamplingParams(temperature=0, seed=1)
SAMPLED = SamplingParams(temperature=1.1, repeat_penalty=1.1, seed=5)


@pytest.fixture
def rig(rigs: Callable[[str], Rig]) -> Rig:
    return rigs("smollm2")


def lookup(rig: Rig) -> MethodDrafter:
    return by_lookup(n_ctx=4096, n_vocab=rig.model.spec.n_vocab)


def pipelined(
    rig: Rig, strategy: str, n_stages: int | tuple[int, int], **options: Any
) -> PipelinedModel:
    return in_threads(
        rig.model,
        strategy=named(strategy, n_stages if isinstance(n_stages, int) else n_stages[0]),
        n_stages=n_stages,
        drafter=None if strategy == "iterative" else lookup(rig),
        **options,
    )


@pytest.mark.parametrize(
    ("strategy", "n_stages"), [("iterative", 3), ("speculative", 5), ("pipeinfer", 2)]
)
def test_chunks_and_completions_are_those_of_one_place(
    rig: Rig, strategy: str, n_stages: int
) -> None:
    with pipelined(rig, strategy, n_stages) as model:
        for sampling in (GREEDY, SAMPLED):
            how: Any = {"n_predict": 32, "sampling": sampling, "stop": ["\n\n"]}
            for prompt in PROMPTS:
                with rig.model.stream(prompt, **how) as plain:
                    expected = [(c.text, c.token) for c in plain]
                with model.stream(prompt, **how) as chunks:
                    assert [(c.text, c.token) for c in chunks] == expected
                found, one = chunks.completion, plain.completion
                assert (found.text, found.tokens) == (one.text, one.tokens)
                assert (found.stop_reason, found.seed) == (one.stop_reason, one.seed)
                assert found.timings.prompt_n == one.timings.prompt_n
                assert found.timings.predicted_n == one.timings.predicted_n
                assert found.pipeline is not None
                assert found.pipeline.tokens >= len(found.tokens) - 1


@pytest.mark.parametrize(
    ("strategy", "n_stages", "n_members"),
    [("iterative", 1, 2), ("speculative", 1, 3), ("pipeinfer", 2, 2)],
)
def test_members_of_stages_write_what_one_place_writes(
    rig: Rig, strategy: str, n_stages: int, n_members: int
) -> None:
    with pipelined(rig, strategy, (n_stages, n_members)) as model:
        for sampling in (GREEDY, SAMPLED):
            for prompt in PROMPTS[:2]:
                how: Any = {"n_predict": 24, "sampling": sampling}
                assert (
                    model.generate(prompt, **how).tokens == rig.model.generate(prompt, **how).tokens
                )
        with model.stream(PROMPTS[2], n_predict=500) as chunks:
            next(iter(chunks))  # and a text that is left, with runs in flight
        how = {"n_predict": 8, "sampling": GREEDY}
        found, one = model.generate(PROMPTS[2], **how), rig.model.generate(PROMPTS[2], **how)
        assert found.tokens == one.tokens


def test_members_in_threads_are_as_unlike_as_a_splitter_says(rig: Rig) -> None:
    def split(_: Ranks) -> Placement:
        return Placement([range(12), range(0), range(12, 30)], [Group((0, 1), (3, 1))])

    how: Any = {"n_predict": 16, "sampling": SAMPLED}
    expected = rig.model.generate(PROMPTS[0], **how).tokens
    with pipelined(rig, "pipeinfer", 3, layers=split, n_threads=[2, 1, 1]) as model:
        assert model.generate(PROMPTS[0], **how).tokens == expected
        first, _, follower = (
            stage.stage.weight_bytes
            for stage in (*cast(Any, model.pipeline)._stages, *cast(Any, model.pipeline)._followers)
        )
        assert first > 2.5 * follower
    with pytest.raises(PyflowError, match="n_threads: expected 2 numbers, found 3"):
        pipelined(rig, "iterative", (1, 2), n_threads=[1, 1, 1])


@pytest.mark.parametrize("method", ["lookahead", pytest.param("jacobi", marks=pytest.mark.accept)])
@pytest.mark.parametrize(("strategy", "n_stages"), [("speculative", 2), ("pipeinfer", 3)])
def test_what_a_drafter_asks_changes_no_token_and_leaves_no_cell(
    rig: Rig, method: str, strategy: str, n_stages: int
) -> None:
    (made_of,), n_nodes = made(rig.model, Speculation(method=method, window=4))
    drafter = MethodDrafter(made_of, n_nodes, n_ctx=4096, n_vocab=rig.model.spec.n_vocab)
    with in_threads(
        rig.model, strategy=named(strategy, n_stages), n_stages=n_stages, drafter=drafter
    ) as model:
        for sampling in (GREEDY, SAMPLED):
            how: Any = {"n_predict": 24, "sampling": sampling}
            for prompt in PROMPTS[::2]:
                found, one = model.generate(prompt, **how), rig.model.generate(prompt, **how)
                assert found.tokens == one.tokens
                assert found.pipeline is not None
                assert found.pipeline.explored > 30
                n_free = [stage.n_free for stage in cast(Any, model.pipeline)._stages]
                assert set(n_free) == {model.n_ctx - len(model.runner._held)}


def test_several_prompts_run_in_turn_with_noise_of_their_own(rig: Rig) -> None:
    prompts = [PROMPTS[1], PROMPTS[1], PROMPTS[2]]
    expected = rig.model.generate(prompts, n_predict=12, sampling=SAMPLED)
    with pipelined(rig, "pipeinfer", 2) as model:
        found = model.generate(prompts, n_predict=12, sampling=SAMPLED)
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    assert found[0].tokens != found[1].tokens


def test_the_context_ends_an_answer_where_it_does_in_one_place(rig: Rig) -> None:
    for strategy in NAMES:
        with pipelined(rig, strategy, 2, n_ctx=30) as model:
            expected = rig.model.generate(PROMPTS[1], n_ctx=30, sampling=GREEDY)
            found = model.generate(PROMPTS[1], sampling=GREEDY)
            assert expected.stop_reason == found.stop_reason == "context"
            assert (found.text, found.tokens) == (expected.text, expected.tokens)
            with pytest.raises(PyflowError, match="30"):
                model.stream("word " * 40)


def finish(turn: Turn) -> Any:
    for _ in turn:
        pass
    return turn.completion


def test_a_chat_keeps_what_stages_hold_and_goes_on_when_it_was_stopped(rig: Rig) -> None:
    with pipelined(rig, "pipeinfer", 3) as model:
        plain, chat = (ChatSession(m, sampling=SAMPLED, n_predict=24) for m in (rig.model, model))
        for question in ("Hi there!", "Tell me more.", "And then?"):
            expected, found = finish(plain.ask(question)), finish(chat.ask(question))
            assert found.tokens == expected.tokens
            assert found.timings.prompt_n == expected.timings.prompt_n
        assert found.timings.prompt_n < len(found.prompt_tokens) // 2
        for session in (plain, chat):
            turn = session.ask("Count to a hundred.")
            for _ in range(5):
                next(turn)
            turn.cancel()
            assert finish(turn).stop_reason == "cancelled"
        with model.stream(PROMPTS[0], n_predict=8, sampling=GREEDY) as between:
            assert len(list(between)) == 8
        expected, found = finish(plain.regenerate()), finish(chat.regenerate())
        assert found.tokens == expected.tokens
        plain.close()
        chat.close()


def test_a_chat_past_its_context_forgets_the_oldest_turns(rig: Rig) -> None:
    notices: list[str] = []
    how: Any = {"sampling": SAMPLED, "notice": notices.append}
    with pipelined(rig, "pipeinfer", 2, n_ctx=128) as model:
        for n_predict in (40, -1):  # the context is full before an answer, or in its middle
            plain = ChatSession(rig.model, n_ctx=128, n_predict=n_predict, **how)
            chat = ChatSession(model, n_predict=n_predict, **how)
            for i in range(4):
                question = f"What comes after {i}?"
                expected, done = finish(plain.ask(question)), finish(chat.ask(question))
                assert done.tokens == expected.tokens
                assert done.stop_reason == expected.stop_reason
                # What is left of the text has moved, and was not computed again. Stages also hold
                # what a chat has in common with another one.
                assert not i or done.timings.prompt_n == expected.timings.prompt_n
            plain.close()
        assert len(notices) == 4
        assert "128 tokens" in notices[0]


def test_what_was_drawn_before_a_loss_counts_as_read_in_times(rig: Rig) -> None:
    how: Any = {"n_predict": 12, "sampling": SAMPLED}
    expected = rig.model.generate(PROMPTS[1], **how)
    with pipelined(rig, "iterative", 2) as model, tempfile.TemporaryFile() as file:
        for n_before in (5, 12):
            file.truncate(0)
            model.runner._journal = Journal(file.fileno())
            with model.stream(PROMPTS[1], **how) as chunks:
                for _ in range(n_before):
                    next(chunks)
            model.runner._journal = Journal(file.fileno())  # as the next process finds it
            found = model.generate(PROMPTS[1], **how)
            assert found.tokens == expected.tokens
            times, n_prompt = found.timings, len(found.prompt_tokens)
            assert (times.prompt_n, times.predicted_n) == (n_prompt + n_before, 12 - n_before)
            assert times.prompt_ms > 1 or n_before == 12


def test_a_stream_that_is_closed_or_cancelled_leaves_the_pipeline_to_the_next(rig: Rig) -> None:
    expected = rig.model.generate(PROMPTS[1], n_predict=16, sampling=SAMPLED).tokens
    with pipelined(rig, "pipeinfer", 3) as model:
        for end in ("cancel", "close", "stop", "before"):
            chunks = model.stream(PROMPTS[0], n_predict=200, sampling=SAMPLED)
            if end == "before":
                chunks.cancel()
            else:
                next(chunks)
                with pytest.raises(PyflowError, match="stream"):
                    next(model.stream("Other"))
                next(chunks)
                getattr(chunks, "close" if end == "stop" else end)()
            assert all(chunk.token is None for chunk in chunks)
            assert chunks.completion.stop_reason == "cancelled"
            again = model.generate(PROMPTS[1], n_predict=16, sampling=SAMPLED)
            assert again.tokens == expected


def test_layers_are_as_given_and_what_does_not_fit_is_refused(rig: Rig) -> None:
    strategy = named("pipeinfer", 2)
    how: Any = {"n_predict": 12, "sampling": SAMPLED}
    with in_threads(rig.model, strategy=strategy, n_stages=3, layers=given([0, 29, 1])) as model:
        assert model.n_stages == 2
        expected = rig.model.generate(PROMPTS[2], **how)
        assert model.generate(PROMPTS[2], **how).tokens == expected.tokens
        refused: dict[str, dict[str, Any]] = {
            "n_ctx": {"n_ctx": 64},
            "cache_type": {"cache_type": "q8_0"},
            "n_logprobs": {"sampling": SamplingParams(n_logprobs=2)},
            "n_predict": {"n_predict": 0},
        }
        for name, options in refused.items():
            with pytest.raises(PyflowError, match=name):
                model.stream("x", **options)
        with pytest.raises(PyflowError, match=r"n_ctx=.*cache_type="):
            ChatSession(model, n_ctx=77)
    with pytest.raises(ShapeError, match=r"30.*20"):
        in_threads(rig.model, strategy=strategy, n_stages=2, layers=given([10, 10]))
    with pytest.raises(ShapeError, match=r"n_ctx.*8192.*100000"):
        in_threads(rig.model, strategy=strategy, n_ctx=100_000)
