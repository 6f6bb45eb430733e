"""Regimes, on a table whose prompts have an arithmetic of their own: what was given and what was
drawn is computed alike however it comes, and cells of one kind never stand for the other."""

from __future__ import annotations

import platform
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pyflow
from pyflow import _core
from pyflow.batch.admission import Admission
from pyflow.batch.batch import Batch
from pyflow.batch.completion import Completion
from pyflow.batch.local_runner import LocalRunner
from pyflow.batch.request import Request, View
from pyflow.cluster.model import in_threads
from pyflow.cluster.mpi.handshake import check
from pyflow.cluster.run.strategy import iterative
from pyflow.cluster.wire.messages import Hello
from pyflow.engine.context import Regime
from pyflow.engine.model_files import ModelFiles
from pyflow.errors import PyflowError, SessionWarning, ShapeError
from pyflow.generate.session import ChatSession, Turn
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, speculator

from ..tiny_models import write_model
from .answers import answered

ISA = "amx_emulated"
LETTERS = b"abcdefgijklmnopqrstuvwxyz "  # without h: two letters are never one token


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("regimes") / "tiny.gguf"
    return write_model(path, n_layers=2, window=0, has_tokenizer=True)


@pytest.fixture(scope="module", autouse=True)
def isa() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        if platform.machine() not in {"x86_64", "AMD64"}:
            pytest.skip("tiles are emulated on x86-64 alone")
        patch.setenv("PYFLOW_ISA", ISA)
        yield patch


@pytest.fixture(scope="module")
def model(path: Path, isa: pytest.MonkeyPatch) -> Iterator[pyflow.Model]:
    del isa
    with pyflow.load(path, n_threads=2, quantize="q8_0") as model:
        assert (model.isa, model.stage.prefill) == (ISA, "bf16")
        yield model


@pytest.fixture(scope="module")
def sampling(model: pyflow.Model) -> SamplingParams:
    """Letters alone, so that answers come back as the tokens that were drawn."""
    known = {model.tokenizer.encode(chr(letter))[-1] for letter in LETTERS}
    bias = {t: -np.inf for t in range(model.spec.n_vocab) if t not in known}
    return SamplingParams(seed=3, temperature=1.0, n_logprobs=2, logit_bias=bias)


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 200, n).tolist()


def bits(done: Completion) -> list[tuple[int, bytes]]:
    reports = [*(done.prompt_logprobs or ()), *(done.logprobs or ())]
    values = [np.array([r.logprob, *(p for _, p in r.top)]).tobytes() for r in reports]
    return [(r.token, value) for r, value in zip(reports, values, strict=True)]


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("regime", ["prefill", "decode"])
def test_any_cut_of_a_text_gives_the_same_bits(
    model: pyflow.Model, path: Path, regime: Regime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = text(150)
    found = []
    for n_batch in (150, 33, 32, 7, 1):
        with model.context(160, n_batch=n_batch) as context:
            found.append(context.forward(tokens, logits="all", regime=regime))
    monkeypatch.setattr(_core, "ThreadPool", partial(_core.ThreadPool, adapts=False))
    for n in (1, 3):
        with pyflow.load(path, n_threads=n, quantize="q8_0") as m, m.context(160) as context:
            found.append(context.forward(tokens, logits="all", regime=regime))
    assert all(same(each, found[0]) for each in found)
    other: Regime = "decode" if regime == "prefill" else "prefill"
    with model.context(160) as context:
        assert not same(context.forward(tokens, logits="all", regime=other), found[0])
        assert not same(context.forward(tokens[:1], regime=other), found[0][:1])


def test_a_step_mixes_rows_of_both_regimes(model: pyflow.Model) -> None:
    prompts = [text(n, seed=n) for n in (40, 1, 19, 3)]
    given: list[tuple[int, list[int], Regime]] = [
        (0, text(1, 50), "decode"),
        (1, text(37, 51), "prefill"),
        (2, text(5, 52), "decode"),
        (3, text(2, 53), "prefill"),
    ]

    def entry(seq: int, tokens: list[int], regime: Regime) -> _core.Entry:
        reports = [(row, 9, 3) for row in range(len(tokens))]
        rows = [*range(len(tokens))]
        return _core.Entry(seq, tokens, reports=reports, hidden=rows, regime=regime)

    def results(together: bool) -> list[Any]:
        with model.context(256, n_seq_max=4) as context:
            for seq, prompt in enumerate(prompts):
                context.forward(prompt, None, seq, logits="none", regime="prefill")
            if together:
                found = context.step([entry(*each) for each in given])
            else:
                found = [context.step([entry(*each)])[0] for each in given]
            return [
                ([(r.logprob, r.top) for r in each.reports], each.hidden.tobytes())
                for each in found
            ]

    assert results(together=True) == results(together=False)


def test_drafts_are_no_part_of_a_prompt(model: pyflow.Model) -> None:
    sampler = _core.Sampler(temperature=0)
    entry = _core.Entry(0, [1, 2], sampler, draft=_core.Draft([3], [-1]), regime="prefill")
    with model.context(16) as context:
        (result,) = context.step([entry])
        with pytest.raises(ShapeError, match="drafts are decoded"):
            result.check()


def requests(sampling: SamplingParams) -> list[Request]:
    """Of every kind, many of which begin alike."""
    kinds: list[dict[str, Any]] = [
        {"n_predict": 14},
        {"n_predict": 6, "n_report": 2},
        {"n_predict": 0, "n_report": 1},
        {"n_predict": 0, "pooling": "mean"},
    ]
    stems = [text(45, 1), text(20, 2)]
    return [
        Request(view=View([*stem, *text(i, 3)]), sampling=sampling, limit=96, reuse=True, **kind)
        for stem in stems
        for i in (0, 4)
        for kind in kinds
    ]


def one(model: pyflow.Model, request: Request) -> Completion:
    with LocalRunner(model.context(128)) as runner:
        return answered(Batch(runner, model), [request])[0]


@pytest.mark.parametrize(("method", "n_cells"), [("off", 150), ("lookahead", 400)])
def test_load_changes_no_bit(
    model: pyflow.Model,
    sampling: SamplingParams,
    method: str,
    n_cells: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = requests(sampling)
    alone = [one(model, request) for request in asked]
    drafts = None if method == "off" else speculator(model, Speculation(method=method))
    if method == "off":  # texts begin too early, and are put back
        monkeypatch.setattr(Admission, "_has_cells", lambda *_: True)
    context = model.context(n_cells, n_seq_max=12, n_batch=32)
    with LocalRunner(context, drafts, n_parallel=6, itl_s=0.01) as runner:
        found = answered(Batch(runner, model), asked, random.Random(n_cells))
        assert method != "off" or runner.usage.n_put_back > 0
    for a, b in zip(alone, found, strict=True):
        assert bits(a) == bits(b)
        assert a.pooled is None or b.pooled is not None
        assert a.pooled is None or same(a.pooled, b.pooled)
    if drafts is not None:
        drafts.close()


def test_drafts_are_not_weighed_against_prompts_beside_them(
    model: pyflow.Model, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows take a pass of their own, which costs the same whatever is drafted."""
    views = [View(text(n)) for n in (3, 150)]
    asked = [Request(view=view, sampling=sampling, limit=200, n_predict=12) for view in views]
    others, weighed = [0], [0]
    with speculator(model, Speculation(method="lookup")) as drafts:
        plan, choose = drafts.plan, drafts.controller.choose

        def planned(*args: Any, **rest: Any) -> Any:
            others.append(args[3])
            return plan(*args, **rest)

        def chosen(drafted: Any, n: int) -> Any:
            weighed.append(n)
            return choose(drafted, n)

        monkeypatch.setattr(drafts, "plan", planned)
        monkeypatch.setattr(drafts.controller, "choose", chosen)
        context = model.context(400, n_seq_max=4, n_batch=32)
        with LocalRunner(context, drafts, n_parallel=2) as runner:
            answered(Batch(runner, model), asked)
    assert max(others) > 16 > max(weighed) == 0


def test_an_answer_that_is_given_again_is_read_as_a_prompt(
    model: pyflow.Model, sampling: SamplingParams
) -> None:
    def asking(tokens: list[int], drawn: tuple[tuple[int, int], ...] = ()) -> Request:
        view = View(tokens, drawn=drawn)
        return Request(view=view, sampling=sampling, limit=128, n_predict=8, reuse=True)

    prompt, more = text(30), text(9, 5)
    with LocalRunner(model.context(256, n_seq_max=4)) as runner:
        first = answered(Batch(runner, model), [asking(prompt)])[0]
        whole = [*prompt, *first.tokens, *more]
        drawn = ((len(prompt), len(prompt) + len(first.tokens)),)
        again = answered(Batch(runner, model), [asking(whole)])[0]
        assert again.timings.prompt_n == len(whole) - len(prompt)
        told = answered(Batch(runner, model), [asking(whole, drawn)])[0]
        assert told.timings.prompt_n == 1 + len(more)  # the last drawn token has no cell
        assert answered(Batch(runner, model), [asking(whole)])[0].timings.prompt_n == 1
    assert bits(again) == bits(one(model, asking(whole)))
    assert bits(told) == bits(one(model, asking(whole, drawn)))
    assert bits(told) != bits(again)


class Template:
    """Messages as they are, each with an end."""

    def encode(self, messages: Sequence[dict[str, str]], **_: Any) -> list[int]:
        return [token for m in messages for token in [*m["content"].encode(), 1, 2, 3]]


def finish(turn: Turn) -> Completion:
    for _ in turn:
        pass
    return turn.completion


def chat(model: Any, sampling: SamplingParams, **options: Any) -> ChatSession:
    template: Any = Template()
    return ChatSession(model, sampling=sampling, n_predict=12, template=template, **options)


def runner_of(session: ChatSession) -> LocalRunner:
    runner = session._run.runner
    assert isinstance(runner, LocalRunner)
    return runner


def test_a_conversation_computes_lost_cells_as_it_did(
    model: pyflow.Model, sampling: SamplingParams
) -> None:
    def answers(loses: bool) -> list[list[tuple[int, bytes]]]:
        with chat(model, sampling) as session:
            out = []
            for question in ("one", "two", "three"):
                out.append(bits(finish(session.ask(question))))
                if loses:
                    runner_of(session).prefixes.clear()
            out.append(bits(finish(session.regenerate())))
            return out

    kept, lost = answers(loses=False), answers(loses=True)
    assert kept == lost
    assert len({str(each) for each in kept}) == 4


def test_a_conversation_goes_on_past_its_context(
    model: pyflow.Model, sampling: SamplingParams
) -> None:
    with chat(model, sampling, n_ctx=64) as session:
        for i in range(8):
            assert len(finish(session.ask(f"number {i}")).tokens) == 12
        done = finish(session.regenerate())
        assert done.timings.prompt_n < len(done.prompt_tokens)


def test_a_session_keeps_which_tokens_were_drawn(
    model: pyflow.Model, sampling: SamplingParams, tmp_path: Path
) -> None:
    def answers(*, closes: bool) -> tuple[list[tuple[int, bytes]], int]:
        path = tmp_path / f"{closes}.session"
        session = chat(model, sampling, session=path)
        finish(session.ask("one"))
        finish(session.ask("two"))
        if closes:
            session.close()
            session = chat(model, sampling, session=path)
        with session:
            done = finish(session.ask("three"))
            return bits(done), done.timings.prompt_n

    assert answers(closes=True) == answers(closes=False)


def test_sessions_of_other_arithmetics_are_read_or_refused(
    model: pyflow.Model,
    path: Path,
    sampling: SamplingParams,
    tmp_path: Path,
    isa: pytest.MonkeyPatch,
) -> None:
    isa.setenv("PYFLOW_ISA", "scalar")
    with pyflow.load(path, n_threads=1, quantize="q8_0") as plain:
        isa.setenv("PYFLOW_ISA", ISA)
        with chat(plain, sampling, session=tmp_path / "a") as session:
            first = finish(session.ask("one"))
        # All its cells are those of decoding, and count as such.
        with chat(model, sampling, session=tmp_path / "a") as session:
            second = finish(session.ask("two"))
            assert second.timings.prompt_n == len(second.prompt_tokens) - (
                len(first.prompt_tokens) + len(first.tokens) - 1
            )
        with (
            pytest.warns(SessionWarning, match="arithmetic of prompts: expected decode"),
            chat(plain, sampling, session=tmp_path / "a") as session,
        ):
            assert session.messages == []


def test_stages_in_threads_write_what_one_place_writes(
    model: pyflow.Model, path: Path, sampling: SamplingParams
) -> None:
    plain = SamplingParams(seed=3, temperature=1.0, logit_bias=sampling.logit_bias)
    files = ModelFiles(path, quantize="q8_0")

    def answers(writer: Any) -> list[list[int]]:
        with chat(writer, plain) as session:
            out = [finish(session.ask(question)).tokens for question in ("one", "two")]
        done = writer.generate(text(40), sampling=plain, n_predict=12)
        return [*out, done.tokens]

    with in_threads(files, strategy=iterative(), n_stages=2, n_ctx=256) as pipelined:
        assert answers(pipelined) == answers(model)


def test_ranks_agree_on_the_arithmetic_of_prompts() -> None:
    def ranks(*prefills: str) -> list[Hello]:
        return [
            Hello(0, rank, f"host{rank}", 1, "0", "0" * 64, "isa", prefill)
            for rank, prefill in enumerate(prefills)
        ]

    check(ranks("bf16", "bf16"))
    with pytest.raises(PyflowError, match=r"rank 1 .*prompts: expected bf16, found decode.*ISA="):
        check(ranks("bf16", "decode"))


def test_panels_are_in_the_memory_plan(path: Path, isa: pytest.MonkeyPatch) -> None:
    def scratch(name: str, n_batch: int, n_threads: int = 1) -> int:
        sizes: Any = {"n_ctx": 128, "n_seq_max": 1, "cache_type": "f16"}
        isa.setenv("PYFLOW_ISA", name)
        with pyflow.load(path, n_threads=n_threads, quantize="q8_0") as model:
            return _core.Context.memory(model.stage, n_batch=n_batch, **sizes)[1]

    n_ff = 128
    more = [scratch(ISA, 64, n) - scratch("scalar", 64, n) for n in (1, 2, 3)]
    of_thread = more[1] - more[0]  # sums and weights of its products
    assert more[2] - more[1] == of_thread > 1 << 18
    for n_batch, n_rows in ((64, 64), (7, 32)):
        found = scratch(ISA, n_batch) - scratch("scalar", n_batch)
        assert found == n_rows * n_ff * 2 + of_thread
    isa.setenv("PYFLOW_ISA", ISA)
