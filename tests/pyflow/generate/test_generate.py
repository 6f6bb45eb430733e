"""Generation over a fake engine: stops, text in whole characters, batches, cancellation, limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyflow.batch.answer import StopScanner
from pyflow.engine.context import Context
from pyflow.errors import PyflowError, ResourceError, ShapeError
from pyflow.generate import Completion
from pyflow.generate import stream as stream_in
from pyflow.generate.any_model import is_one
from pyflow.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
EOS = 257


def stream(source: Any, prompt: Any, **options: Any) -> Any:
    """From a model or a context."""
    if isinstance(source, Context):
        return stream_in(source, prompt, **options)
    return source.stream(prompt, **options)


def generate(source: Any, prompt: Any, **options: Any) -> Any:
    done = stream(source, prompt, **options).read()
    return done[0] if is_one(prompt) else done


def pieces(chunks: Any) -> list[str]:
    return [chunk.text for chunk in chunks]


@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=10),
)
def test_no_cut_lets_a_stop_text_or_a_part_of_it_through(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    scanner = StopScanner(stops)
    found = [at for s in stops if (at := text.find(s)) >= 0]
    out, stopped = "", False
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    for a, b in itertools.pairwise(edges):
        piece, stopped = scanner.feed(text[a:b])
        out += piece
        if stopped:
            break
        # What waits is no longer than it must be.
        assert not any(text[len(out) : b].startswith(s) for s in stops)
    if not stopped:
        out += scanner.flush()
    # The stop text that is complete first ends the text; with several, it need not begin first.
    assert stopped == bool(found)
    if len(stops) <= 1:
        assert out == (text[: min(found)] if found else text)
    assert text.startswith(out)
    assert not any(s in out for s in stops)


def test_text_that_cannot_become_a_stop_text_does_not_wait() -> None:
    scanner = StopScanner(["\nUser:"])
    assert scanner.feed("Hello\n") == ("Hello", False)
    assert scanner.feed("World") == ("\nWorld", False)


def test_generation_ends_at_the_end_token_without_it(saying: Callable[..., Any]) -> None:
    done = generate(saying("Hi", "there"), "Hi", sampling=GREEDY)
    assert (done.text, done.stop_reason) == ("there", "eos")
    assert done.tokens == list(b"there")
    assert done.prompt_tokens == [256, *b"Hi"]
    assert done.timings.prompt_n == 3
    assert done.timings.predicted_n == 6
    assert done.timings.load_ms == 1.5
    assert done.logprobs is None


def test_generation_ends_at_n_predict(saying: Callable[..., Any]) -> None:
    done = generate(saying("Hi", "there"), "Hi", n_predict=3, sampling=GREEDY)
    assert (done.text, done.stop_reason, done.timings.predicted_n) == ("the", "length", 3)


def test_generation_ends_before_a_stop_text(saying: Callable[..., Any]) -> None:
    model = saying("Q", "one\nUser: two")
    with stream(model, "Q", stop=["User:", "\nUser", "zz"], sampling=GREEDY) as chunks:
        text = "".join(pieces(chunks))
    assert text == chunks.completion.text == "one"
    assert chunks.completion.stop_reason == "stop"
    assert bytes(chunks.completion.tokens).decode() == "one\nUser"


def test_a_single_stop_text_needs_no_list(saying: Callable[..., Any]) -> None:
    done = generate(saying("Q", "one two END"), "Q", stop="END", sampling=GREEDY)
    assert (done.text, done.stop_reason) == ("one two ", "stop")
    for wrong in ("", [""], [3], 3):
        with pytest.raises(PyflowError, match="stop"):
            generate(saying("Q", "one"), "Q", stop=wrong, sampling=GREEDY)


def test_a_held_back_beginning_comes_out_at_the_end(saying: Callable[..., Any]) -> None:
    for n_predict, reason in ((-1, "eos"), (4, "length")):
        done = generate(
            saying("Q", "ab##"), "Q", n_predict=n_predict, stop=["###"], sampling=GREEDY
        )
        assert (done.text, done.stop_reason) == ("ab##", reason)


def test_characters_come_whole(saying: Callable[..., Any]) -> None:
    text = "né日本🙂!"
    chunks = stream(saying("Q", text), "Q", sampling=GREEDY)
    got = pieces(chunks)
    assert "".join(got) == text
    assert [t for t in got if t] == list(text)
    assert len(got) == len(text.encode()) + 1


def test_half_a_character_at_the_end_becomes_a_replacement(saying: Callable[..., Any]) -> None:
    done = generate(saying("Q", "🙂".encode()[:2]), "Q", sampling=GREEDY)
    assert done.text == "�"


def test_chunks_and_completion_agree(fake_model: Any) -> None:
    chunks = stream(fake_model, "Hello", sampling=SamplingParams(seed=5, n_logprobs=3))
    parts = list(chunks)
    done = chunks.completion
    assert "".join(c.text for c in parts) == done.text
    assert [c.token for c in parts if c.token != EOS] == done.tokens
    assert [c.logprobs for c in parts] == done.logprobs
    assert all(len(c.logprobs.top) == 3 and c.logprobs.token == c.token for c in parts)
    assert done.seed == 5


def test_a_seed_repeats_and_a_drawn_one_is_reported(fake_model: Any) -> None:
    done = generate(fake_model, "Hello", n_predict=40)
    again = generate(fake_model, "Hello", n_predict=40, sampling=SamplingParams(seed=done.seed))
    assert again.tokens == done.tokens


def test_each_step_runs_one_row(fake_model: Any) -> None:
    done = generate(fake_model, "Hello", n_predict=20, sampling=SamplingParams(seed=1))
    (context,) = fake_model.contexts
    assert context.n_rows == [6] + [1] * (done.timings.predicted_n - 1)
    assert context.closed


def summary(done: Completion) -> tuple[object, ...]:
    return done.text, done.tokens, done.prompt_tokens, done.stop_reason


def test_prompts_in_a_batch_give_what_they_give_alone(make_model: Any) -> None:
    prompts = [f"prompt {i}" * (1 + i % 3) for i in range(40)]
    params = SamplingParams(seed=3, temperature=1.2, repeat_penalty=1.1)
    model = make_model()
    together = generate(model, prompts, n_predict=30, sampling=params)
    assert model.contexts[0].n_seq_max == 16
    alone = [generate(make_model(), p, n_predict=30, sampling=params) for p in prompts]
    assert [summary(d) for d in together] == [summary(d) for d in alone]
    assert len({d.stop_reason for d in together}) > 1
    # All rows of a step go through one call.
    assert len(model.contexts[0].n_rows) < 40 * 30 / 8


def test_copies_of_a_prompt_take_streams_of_their_own(fake_model: Any) -> None:
    params = SamplingParams(seed=3)
    texts = [d.text for d in generate(fake_model, ["same", "other", "same"], sampling=params)]
    assert texts[0] == generate(fake_model, "same", sampling=params).text
    assert texts[1] == generate(fake_model, "other", sampling=params).text
    assert texts[2] != texts[0]


def test_tokens_are_taken_as_they_are(fake_model: Any) -> None:
    one = generate(fake_model, [72, 105], n_predict=4, sampling=GREEDY)
    assert isinstance(one, Completion)
    assert one.prompt_tokens == [72, 105]
    (several,) = generate(fake_model, [[72, 105]], n_predict=4, sampling=GREEDY)
    assert several.tokens == one.tokens


def test_a_context_is_cleared_and_stays_open(fake_model: Any) -> None:
    context = fake_model.context(64, n_seq_max=2)
    a = generate(context, "Hello", n_predict=10, sampling=GREEDY)
    b = generate(context, ["Hello", "World", "Third"], n_predict=10, sampling=GREEDY)
    assert summary(b[0]) == summary(a)
    assert not context.closed
    # Without a length each may need the whole context, so they take turns.
    c = generate(context, ["Hello", "World"], sampling=GREEDY)
    assert all(d.stop_reason in ("eos", "context") for d in c)


def test_the_context_ends_generation(saying: Callable[..., Any]) -> None:
    done = generate(saying("Hi", "x" * 100), "Hi", n_ctx=10, sampling=GREEDY)
    # Positions 3 to 9 hold tokens; the last one drawn takes position 10 and is never run.
    assert (done.stop_reason, len(done.tokens)) == ("context", 8)


def test_default_context_fits_the_answer_that_was_asked_for(make_model: Any) -> None:
    model = make_model(n_ctx_train=100)
    generate(model, "Hi", n_predict=5)
    generate(model, "Hi")
    generate(model, "Hi", n_predict=500)
    assert [c.n_ctx for c in model.contexts] == [8, 100, 100]


def test_cancelling_ends_with_what_there_is(saying: Callable[..., Any]) -> None:
    model = saying("Hi", "abc###defgh")
    chunks = stream(model, "Hi", sampling=GREEDY, stop=["####"])
    text = ""
    for n, chunk in enumerate(chunks, 1):
        text += chunk.text
        if n == 5:
            chunks.cancel()
    done = chunks.completion
    assert (text, done.text, done.stop_reason) == ("abc##", "abc##", "cancelled")
    assert model.contexts[0].closed


def test_an_interrupted_run_ends_with_what_there_is(saying: Callable[..., Any]) -> None:
    model = saying("Hi", "abcdef")
    chunks = stream(model, "Hi", sampling=GREEDY)
    assert next(chunks).text == "a"
    model.contexts[0].before_call = chunks.cancel
    assert list(chunks) == []
    assert chunks.completion.stop_reason == "cancelled"
    assert chunks.completion.text == "a"


def test_cancelling_before_the_start_draws_nothing(fake_model: Any) -> None:
    chunks = stream(fake_model, ["Hi", "Ho"])
    chunks.cancel()
    assert list(chunks) == []
    assert [c.stop_reason for c in chunks.completions] == ["cancelled"] * 2
    assert [c.timings.predicted_n for c in chunks.completions] == [0, 0]


def test_closing_early_frees_the_context(fake_model: Any) -> None:
    with stream(fake_model, "Hi", sampling=SamplingParams(seed=1)) as chunks:
        next(chunks)
        with pytest.raises(PyflowError, match="stream"):
            _ = chunks.completion
    assert fake_model.contexts[0].closed
    assert chunks.completion.stop_reason == "cancelled"
    with stream(fake_model, "Hi"):
        pass
    assert fake_model.contexts[1].closed


def test_an_error_in_the_engine_comes_out_and_frees_the_context(fake_model: Any) -> None:
    chunks = stream(fake_model, "Hi")
    fake_model.contexts[0].n_ctx = 1
    with pytest.raises(ResourceError):
        next(chunks)
    assert fake_model.contexts[0].closed


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([[]], {}, "prompt"),
        ("x" * 9000, {}, "9,001 .*8,192"),
        ("x" * 50, {"n_ctx": 51}, "51 .*51"),
        ("x", {"n_predict": 0}, "n_predict"),
        ("x", {"n_predict": -2}, "n_predict"),
        ("x", {"stop": [""]}, "stop"),
        ("x", {"stop": None}, "stop: .*None"),
        ("x", {"stop": [5]}, r"stop: .*\[5\]"),
        ("x", {"n_predict": 2.5}, r"n_predict: .*2\.5"),
        ("x", {"n_ctx": 64.5}, r"n_ctx: .*64\.5"),
        ("x", {"n_ctx": -5}, "n_ctx: .*-5"),
        ("x", {"sampling": None}, "sampling: .*SamplingParams.*None"),
        ([-1], {}, "prompt: .*-1: .*0 to 258.*fake"),
        ([[1], [259]], {}, "prompt: .*259: .*0 to 258"),
        ([2**40], {}, "prompt.*1099511627776"),
        ([1.5], {}, r"prompt.*\[1\.5\]"),
        (["x", 5], {}, "prompt.*5"),
        (b"abc", {}, "prompt.*b'abc'"),
        (bytearray(b"abc"), {}, r"prompt.*bytearray\(b'abc'\)"),
        ({"a": 1}, {}, r"prompt.*\{'a': 1\}"),
        (None, {}, "prompt.*None"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    fake_model: Any, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PyflowError, match=message):
        stream(fake_model, prompt, **options)
    assert not fake_model.contexts


def test_an_unknown_option_is_a_type_error_that_names_the_right_place(fake_model: Any) -> None:
    with pytest.raises(TypeError, match=r"'top_k'.*sampling=SamplingParams\(top_k=\.\.\.\)"):
        generate(fake_model, "Hi", n_predict=3, top_k=1)
    with pytest.raises(TypeError, match=r"'foo'.*cache_type, constraint, from_language, n_ctx,"):
        stream(fake_model, "Hi", foo=1)  # type: ignore[call-arg]
    assert not fake_model.contexts


def test_arrays_of_tokens_are_prompts(fake_model: Any) -> None:
    one = generate(fake_model, np.array([72, 105]), n_predict=1)
    two = generate(fake_model, np.array([[72, 105], [72, 111]], np.uint8), n_predict=1)
    assert one.prompt_tokens == [72, 105]
    assert [done.prompt_tokens for done in two] == [[72, 105], [72, 111]]


def test_a_context_has_its_own_size(fake_model: Any) -> None:
    with pytest.raises(PyflowError, match="n_ctx"):
        stream(fake_model.context(64), "x", n_ctx=32)


def test_a_context_beyond_the_models_is_refused(fake_model: Any) -> None:
    with pytest.raises(ShapeError, match=r"n_ctx.*8,192.*8,193"):
        stream(fake_model, "x", n_ctx=8193)
