"""Chat sessions over a fake engine: reuse of the cache, forgetting, regenerating, saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow.errors import PyflowError, UnsupportedError
from pyflow.generate import Completion
from pyflow.generate.session import ChatSession, Turn
from pyflow.sampling import SamplingParams

PARAMS = SamplingParams(seed=11, temperature=1.1)


def finish(turn: Turn) -> Completion:
    for _ in turn:
        pass
    return turn.completion


def pairs(session: ChatSession) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in session.messages]


def as_if_alone(model: Any, session: ChatSession, n_predict: int = -1) -> str:
    """The last answer of a session, by one fresh run over all messages before it."""
    messages = [{"role": m.role, "content": m.content} for m in session.messages[:-1]]
    ids = model.chat_template.encode(messages)
    return model.generate(ids, n_ctx=8192, n_predict=n_predict, sampling=PARAMS).text


def test_a_turn_gives_what_a_fresh_run_over_all_messages_gives(fake_model: Any) -> None:
    session = ChatSession(fake_model, system="Be brief.", sampling=PARAMS)
    for question in ("One?", "Two?", "Three?", "Four?"):
        answer = finish(session.ask(question))
        assert pairs(session)[-2:] == [("user", question), ("assistant", answer.text)]
        assert answer.text == as_if_alone(fake_model, session)


def test_a_turn_computes_only_what_is_new(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    first = finish(session.ask("A long question to begin with?"))
    context = fake_model.contexts[0]
    context.n_rows.clear()
    second = finish(session.ask("Next?"))
    # The end mark of the first answer, the question in its marks, and the opening of the answer.
    new = len([257, 258, *b"user:Next?", 257, 258, *b"assistant:"])
    assert context.n_rows == [new] + [1] * (second.timings.predicted_n - 1)
    assert second.timings.prompt_n == new
    assert len(second.prompt_tokens) == len(first.prompt_tokens) + len(first.tokens) + new


def test_a_window_that_has_lost_the_prefix_makes_it_compute_again(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    finish(session.ask("First?"))
    fake_model.contexts[0].window = 3
    finish(session.ask("Second?"))
    finish(session.regenerate())
    session.clear()
    answer = finish(session.ask("Third?"))
    assert answer.timings.prompt_n == len(answer.prompt_tokens)


def test_regenerating_takes_new_noise_and_replaces_the_answer(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    texts = [finish(session.ask("Well then?")).text]
    texts += [finish(session.regenerate()).text for _ in range(3)]
    assert len(set(texts)) == 4
    assert pairs(session) == [("user", "Well then?"), ("assistant", texts[-1])]
    # The same session again gives the same answers.
    again = ChatSession(fake_model, sampling=PARAMS)
    assert finish(again.ask("Well then?")).text == texts[0]
    assert [finish(again.regenerate()).text for _ in range(3)] == texts[1:]


def test_regenerating_computes_one_row_of_the_prompt(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    finish(session.ask("Well then?"))
    assert finish(session.regenerate()).timings.prompt_n == 1


def test_the_oldest_turns_are_forgotten_by_shifting(make_model: Any) -> None:
    model = make_model()
    notices: list[str] = []
    session = ChatSession(
        model, system="SYS", sampling=PARAMS, n_ctx=300, n_predict=40, notice=notices.append
    )
    context = model.contexts[0]
    seen_shift = 0
    for i in range(30):
        answer = finish(session.ask(f"question {i}?"))
        assert answer.stop_reason in ("eos", "length")
        if context.n_shifts > seen_shift:
            seen_shift = context.n_shifts
            # Moving cells is cheap: nothing but the new question was read.
            assert max(context.n_rows) < 60
        context.n_rows.clear()
        held = [context.cells[0][p] for p in sorted(context.cells[0])]
        assert sorted(context.cells[0]) == list(range(len(held)))
        assert held[:10] == [256, 258, *b"system:S"]
    assert context.n_shifts >= 3
    assert len(notices) == 2  # each once
    assert notices[0] == "about the template"
    assert "300 tokens" in notices[1]
    assert len(session.messages) == 61


def test_where_cells_cannot_move_the_newest_turns_are_read_again(make_model: Any) -> None:
    moved, still = make_model(), make_model()
    sessions = [ChatSession(m, sampling=PARAMS, n_ctx=300, n_predict=40) for m in (moved, still)]
    still.contexts[0].shifts = False
    for i in range(20):
        a, b = (finish(session.ask(f"question {i}?")) for session in sessions)
        assert a.text == b.text
    assert moved.contexts[0].n_shifts > 0
    assert still.contexts[0].n_shifts == 0
    assert max(still.contexts[0].n_rows) > max(moved.contexts[0].n_rows)


def test_after_a_shift_the_model_sees_system_and_newest_turns_alone(make_model: Any) -> None:
    model = make_model()
    session = ChatSession(model, system="S", sampling=PARAMS, n_ctx=300, n_predict=30)
    context = model.contexts[0]
    while not context.n_shifts:
        finish(session.ask("What is it now?"))
    held = [context.cells[0][p] for p in sorted(context.cells[0])]
    for first in range(1, len(session.messages)):
        seen = [session.messages[0], *session.messages[first:]]
        ids = model.chat_template.encode(
            [{"role": m.role, "content": m.content} for m in seen], add_generation_prompt=False
        )
        if held == ids[: len(held)]:
            assert len(held) >= len(ids) - 2  # the last token drawn, and the end mark
            assert session.messages[first].role == "user"
            return
    pytest.fail("the cache does not hold the newest turns")


def test_a_shift_within_an_answer_goes_on_with_it(make_model: Any) -> None:
    model = make_model()
    session = ChatSession(model, sampling=PARAMS, n_ctx=200)
    for i in range(60):
        context = model.contexts[0]
        before = context.n_shifts
        turn = session.ask(f"q{i}")
        asked = context.n_shifts
        answer = finish(turn)
        if before == asked < context.n_shifts:
            assert pairs(session)[-1] == ("assistant", answer.text)
            assert bytes(answer.tokens).decode() == answer.text
            return
    pytest.fail("no answer crossed the end of the context")


def test_an_answer_longer_than_the_context_ends_with_it(make_model: Any) -> None:
    model = make_model(letters)
    session = ChatSession(model, sampling=PARAMS, n_ctx=60)
    answer = finish(session.ask("go"))
    assert answer.stop_reason == "context"
    # The conversation can go on: the long turn is forgotten.
    answer = finish(session.ask("more"))
    assert answer.stop_reason == "context"
    assert len(session.messages) == 4


def letters(seen: list[int]) -> NDArray[np.float32]:
    x = np.full(259, -100, np.float32)
    x[97 + len(seen) % 26] = 0
    return x


def test_a_question_that_cannot_fit_is_refused_and_leaves_all_as_it_was(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS, n_ctx=100)
    finish(session.ask("Hi"))
    before = pairs(session)
    with pytest.raises(PyflowError, match="100"):
        session.ask("x" * 200)
    assert pairs(session) == before
    with pytest.raises(PyflowError, match="question"):
        session.ask("  \n")
    assert finish(session.ask("Ho")).tokens


def test_a_cancelled_answer_stays_as_far_as_it_came(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    turn = session.ask("Tell me")
    text = next(turn).text + next(turn).text
    turn.cancel()
    assert list(turn) == []
    assert turn.completion.stop_reason == "cancelled"
    assert pairs(session) == [("user", "Tell me"), ("assistant", text)]
    answer = finish(session.ask("Go on"))
    assert answer.text == as_if_alone(fake_model, session)


def test_an_answer_cancelled_before_it_began_leaves_no_trace(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    turn = session.ask("Tell me")
    turn.cancel()
    assert list(turn) == []
    assert session.messages == []
    finish(session.ask("Hi"))
    kept = pairs(session)
    turn = session.regenerate()
    turn.cancel()
    assert list(turn) == []
    assert pairs(session) == kept


def test_an_unfinished_answer_ends_when_the_next_question_comes(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    first = session.ask("One")
    text = next(first).text
    finish(session.ask("Two"))
    assert pairs(session)[1] == ("assistant", text)
    assert len(session.messages) == 4


def test_an_error_in_the_engine_leaves_a_session_that_works(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    finish(session.ask("One"))
    context = fake_model.contexts[0]

    def fail() -> None:
        raise KeyboardInterrupt

    context.before_call = fail
    with pytest.raises(KeyboardInterrupt):
        next(session.ask("Two"))
    context.before_call = lambda: None
    assert len(session.messages) == 2
    finish(session.ask("Two"))
    assert finish(session.ask("Three")).text == as_if_alone(fake_model, session)


def test_a_saved_conversation_goes_on_elsewhere(fake_model: Any, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    session = ChatSession(fake_model, system="Ünïcode 🙂", sampling=PARAMS)
    finish(session.ask("One?"))
    session.save(path)
    other = ChatSession(fake_model, sampling=PARAMS)
    other.load(path)
    assert pairs(other) == pairs(session)
    assert other.system == "Ünïcode 🙂"
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]
    assert json.loads(path.read_text())["model"] == "fake"
    finish(other.ask("Two?"))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"[1, 2]", ""),
        (b'{"format": "x", "model": "m", "messages": []}', "format: .*pyflow-chat-1"),
        (
            b'{"format": "pyflow-chat-1", "model": "m",'
            b' "messages": [{"role": "cat", "content": ""}]}',
            "",
        ),
        (
            b'{"format": "pyflow-chat-1", "model": "m", "messages":'
            b' [{"role": "user", "content": ""}, {"role": "system", "content": ""}]}',
            "system",
        ),
    ],
)
def test_loading_something_else_is_refused(
    fake_model: Any, tmp_path: Path, content: bytes, named: str
) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    finish(session.ask("One?"))
    kept = pairs(session)
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(PyflowError, match=rf"talk\.json: .*{named}"):
        session.load(path)
    with pytest.raises(PyflowError, match=r"none\.json.*No such file"):
        session.load(tmp_path / "none.json")
    with pytest.raises(PyflowError, match=r"talk\.json.*No such file"):
        session.save(tmp_path / "none" / "talk.json")
    assert pairs(session) == kept


def test_clearing_keeps_the_system_message(fake_model: Any) -> None:
    session = ChatSession(fake_model, system="S", sampling=PARAMS)
    finish(session.ask("One?"))
    session.clear()
    assert pairs(session) == [("system", "S")]
    with pytest.raises(PyflowError, match="answer"):
        session.regenerate()
    session.system = None
    assert session.messages == []
    session.system = "T"
    assert pairs(session) == [("system", "T")]


def test_new_parameters_keep_the_seed(fake_model: Any) -> None:
    session = ChatSession(fake_model, sampling=PARAMS)
    session.sampling = SamplingParams(top_k=7)
    assert session.sampling == SamplingParams(top_k=7, seed=11)
    session.sampling = SamplingParams(seed=12)
    assert session.sampling.seed == 12


def test_a_model_without_a_template_is_refused(fake_model: Any) -> None:
    fake_model.chat_template = None
    with pytest.raises(UnsupportedError, match=r"fake.*--raw"):
        ChatSession(fake_model)
