"""One step for everything: an entry's result depends on no other entry, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow import _core
from pyflow.engine.context import Context
from pyflow.errors import PyflowError, ResourceError, ShapeError

from ..specs.tiny import write_folder

FAMILIES = Path(__file__).parents[2] / "golden/families"

pytestmark = pytest.mark.model

TEXTS = [
    "The capital of France is",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "Once upon a time there was a lighthouse keeper who",
    "def fibonacci(n):",
]
Made = tuple[list[int], list[bytes]]


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(
    model_path: Callable[[str], Path], request: pytest.FixtureRequest
) -> Iterator[pyflow.Model]:
    with pyflow.load(model_path(request.param), n_threads=2) as loaded:
        yield loaded


def sampler_of(text: int, **how: Any) -> _core.Sampler:
    return _core.Sampler(temperature=0.7, seed=text, n_logprobs=2, **how)


def bits(drawn: _core.Sampled) -> bytes:
    return np.array([drawn.logprob, *(p for _, p in drawn.top)], np.float32).tobytes()


def alone(model: pyflow.Model, number: int, n: int) -> Made:
    """A text's next tokens and their logprobs, by a context of its own."""
    tokens, sampler = model.tokenizer.encode(TEXTS[number]), sampler_of(number)
    made: Made = ([], [])
    with model.context(256) as context:
        while len(made[0]) < n:
            (result,) = context.step([_core.Entry(0, tokens, sampler)])
            tokens = [s.token for s in result.drawn]
            made[0].extend(tokens)
            made[1].extend(bits(s) for s in result.drawn)
    return made


def test_chunks_drafts_and_decoding_of_others_change_no_bit(model: pyflow.Model) -> None:
    expected = [alone(model, number, 12) for number in range(len(TEXTS))]
    rng = np.random.default_rng(5)
    tokens = [model.tokenizer.encode(text) for text in TEXTS]
    samplers = [sampler_of(number) for number in range(len(TEXTS))]
    made: list[Made] = [([], []) for _ in TEXTS]
    with model.context(1024, n_seq_max=len(TEXTS)) as context:
        while any(len(m[0]) < 12 for m in made):
            chosen = [i for i in range(len(TEXTS)) if rng.random() < 0.7] or [0]
            entries = [entry(i, tokens[i], samplers[i], made[i], expected[i], rng) for i in chosen]
            for i, one, result in zip(chosen, entries, context.step(entries), strict=True):
                result.check()
                drawn = [s.token for s in result.drawn]
                tokens[i] = drawn[-1:] or tokens[i][len(one.tokens) :]
                made[i][0].extend(drawn)
                made[i][1].extend(bits(s) for s in result.drawn)
    for (got, logprobs), (wanted, other) in zip(made, expected, strict=True):
        n = min(len(got), 12)
        assert (got[:n], logprobs[:n]) == (wanted[:n], other[:n])


def entry(
    seq: int,
    tokens: Sequence[int],
    sampler: _core.Sampler,
    made: Made,
    expected: Made,
    rng: np.random.Generator,
) -> _core.Entry:
    """A chunk of a prompt, or a step with a draft that is right, wrong or empty."""
    if len(tokens) > 1 and rng.random() < 0.6:
        return _core.Entry(seq, tokens[: int(rng.integers(1, len(tokens)))])
    right = expected[0][len(made[0]) :][: int(rng.integers(0, 4))]
    nodes = right + [7] * int(rng.integers(0, 2)) if right else []
    draft = _core.Draft(nodes, range(-1, len(nodes) - 1))
    return _core.Entry(seq, tokens, sampler, draft=draft)


def test_an_entry_that_fails_leaves_no_trace_and_the_others_go_on(model: pyflow.Model) -> None:
    expected = alone(model, 0, 2)
    tokens, n_vocab = model.tokenizer.encode(TEXTS[0]), model.spec.n_vocab
    broken: list[Callable[[], _core.Entry]] = [
        lambda: _core.Entry(1, tokens, _core.Sampler(logit_bias=[(n_vocab, 1.0)])),
        lambda: _core.Entry(1, [n_vocab], _core.Sampler()),
        lambda: _core.Entry(1, []),
        lambda: _core.Entry(1, tokens, draft=_core.Draft([5], [-1])),
        lambda: _core.Entry(1, tokens, _core.Sampler(), draft=_core.Draft([5], [3])),
        lambda: _core.Entry(1, tokens, _core.Sampler(), draft=_core.Draft([], [], policy="x")),
        lambda: _core.Entry(1, tokens, _core.Sampler(), masks=np.zeros(3, np.uint32)),
        lambda: _core.Entry(1, tokens, reports=[(len(tokens), 1, 1)]),
        lambda: _core.Entry(1, tokens, hidden=[-1]),
    ]
    for make in broken:
        with model.context(256, n_seq_max=2) as context:
            free = context.n_free
            good, bad = context.step([_core.Entry(0, tokens, sampler_of(0)), make()])
            assert bad.failed
            with pytest.raises(PyflowError):
                bad.check()
            assert not bad.drawn
            assert context.seq_pos_max(1) == -1
            assert context.n_free == free - len(tokens)
            assert [s.token for s in good.drawn] == expected[0][:1]
            (again,) = context.step([_core.Entry(0, [expected[0][0]], sampler_of(0))])
            assert [s.token for s in again.drawn] == expected[0][1:]


def test_what_no_entry_is_to_blame_for_changes_nothing(model: pyflow.Model) -> None:
    with model.context(16, n_seq_max=2) as context:
        twice = [_core.Entry(0, [1]), _core.Entry(0, [2])]
        for entries, error in (
            ([], ShapeError),
            ([_core.Entry(2, [1])], ShapeError),
            (twice, ShapeError),
            ([_core.Entry(0, [1] * 20)], ResourceError),
        ):
            with pytest.raises(error):
                context.step(entries)
            assert context.n_free == 16


def test_masks_forbid_tokens_of_every_row(model: pyflow.Model) -> None:
    tokens, n_vocab = model.tokenizer.encode(TEXTS[0]), model.spec.n_vocab
    words = -(-n_vocab // 32)
    allowed = [11, 64, 4095]
    mask = np.zeros((3, words), np.uint32)
    for row, token in enumerate(allowed):
        mask[row, token // 32] |= np.uint32(1 << token % 32)
    for policy in ("exact", "rejection"):
        with model.context(64) as context:
            draft = _core.Draft(allowed[:2], [-1, 0], policy=policy)
            one = _core.Entry(0, tokens, sampler_of(0), masks=mask, draft=draft)
            (result,) = context.step([one])
            result.check()
            assert [s.token for s in result.drawn] == allowed
            none = _core.Entry(0, [5], sampler_of(0), masks=np.zeros((1, words), np.uint32))
            (result,) = context.step([none])
            with pytest.raises(PyflowError, match="grammar"):
                result.check()


def test_reports_and_hidden_states_are_those_of_the_rows(model: pyflow.Model) -> None:
    tokens = model.tokenizer.encode(TEXTS[2])
    with model.context(64) as context:
        logits = context.forward(tokens, logits="all")
    targets = [*tokens[1:], 9]
    with model.context(64) as context:
        asked = _core.Entry(
            0, tokens, reports=[(i, t, 2) for i, t in enumerate(targets)], hidden=range(len(tokens))
        )
        (result,) = context.step([asked])
        result.check()
    for row, target, report in zip(logits, targets, result.reports, strict=True):
        logprobs = row - np.logaddexp.reduce(row.astype(np.float64))
        assert report.token == target
        assert report.logprob == pytest.approx(logprobs[target], abs=1e-5)
        assert report.top[0] == (int(row.argmax()), pytest.approx(logprobs.max(), abs=1e-5))
    whole = result.hidden.reshape(len(tokens), -1)
    assert whole.shape == (len(tokens), model.spec.n_embd)
    with model.context(64) as context:  # the same in chunks, beside a draw
        context.step([_core.Entry(0, tokens[:3], hidden=[2])])
        (last,) = context.step([_core.Entry(0, tokens[3:], sampler_of(0), hidden=[0, -1])])
    np.testing.assert_array_equal(last.hidden.reshape(2, -1), whole[[3, -1]])


def test_a_length_is_declared_while_a_sequence_is_empty(model: pyflow.Model) -> None:
    context: Context
    with model.context(64, n_seq_max=2) as context:
        context.declare(1, 32)
        context.step([_core.Entry(1, [3])])
        with pytest.raises(ShapeError):
            context.declare(1, 64)
        with pytest.raises(ShapeError):
            context.declare(2, 64)


def test_a_long_text_turns_as_alone_whatever_the_pool(tmp_path: Path) -> None:
    fixture = json.loads((FAMILIES / "hf_phi3_longrope.json").read_text())
    with pyflow.load(write_folder(tmp_path / "phi3", fixture)) as model:
        short = next(rope.n_ctx_original for rope in model.spec.ropes)
        tokens = [5, 9, 30, 2]
        with model.context(short) as context:
            near = context.forward(tokens, logits="all")
        with model.context(2 * short) as context:
            far = context.forward(tokens, logits="all")
        with model.context(4 * short, n_seq_max=2) as context:
            context.declare(0, short)
            context.declare(1, 2 * short)
            assert not context.turns_alike(short, 2 * short)
            for seq, alone in enumerate((near, far)):
                found = context.forward(tokens, seqs=seq, logits="all")
                np.testing.assert_array_equal(found, alone)
    assert not np.array_equal(near, far)
