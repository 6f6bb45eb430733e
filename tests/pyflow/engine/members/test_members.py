"""Members of one process write what one team of threads writes, whatever is asked of them."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import pyflow
from pyflow import Placement, PlacementWarning, SamplingParams, _core
from pyflow.engine.members.pools import context
from pyflow.engine.topology import Node
from pyflow.errors import CancelledError, LinkError, ResourceError, ShapeError, UnsupportedError
from pyflow.speculate import Speculation, speculator
from tests.pyflow.tiny_models import write_model

SAMPLING = SamplingParams(temperature=0.9, top_k=0, seed=5, repeat_penalty=1.2)
PROMPT = "a prompt that is longer than the window of the model, which sees forty tokens"


def members(*n_threads: int) -> Placement:
    """All next to the machine's first memory node, so that what is done for several is done."""
    nodes = tuple(Node(0, (0, i % 2), n) for i, n in enumerate(n_threads))
    return Placement("members", nodes, tuple(Placement("local", (node,)) for node in nodes))


@pytest.fixture(scope="module", params=[0, 40])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    return write_model(file, n_layers=3, window=request.param, n_embd=128, has_tokenizer=True)


PLACEMENTS = [members(1, 1), members(2, 1), members(1, 1, 1, 1)]
IDS = ["alike", "unequal", "more than kv heads"]


def told(model: pyflow.Model) -> list[object]:
    """Of steps, texts, drafts, reports, and what is kept of them."""
    tokens = np.random.default_rng(3).integers(0, model.spec.n_vocab, 90).astype(np.int32)
    found: list[object] = [model.logits(tokens).tobytes()]
    with model.context(200, n_seq_max=3) as one:
        found.append(one.score(tokens[:35], 4).tobytes())
        one.seq_cp(0, 1)
        one.seq_rm(0, 20)
        found.append(one.forward([7, 8], logits="all").tobytes())
        found.append(one.forward([9], seqs=1).tobytes())
        one.seq_keep(1)
        one.seq_rm(1, 10, 15)
        one.seq_add(1, 15, -1, -5)
        found.append(one.forward([3], seqs=1).tobytes())
        found.append((one.n_free, one.seq_pos_max(0), one.seq_pos_max(1)))
        one.clear()
        sampler = _core.Sampler(temperature=0.0)
        one.forward(tokens[:20], logits="none", regime="prefill")
        grown = one.guess([5], [-1], 0, [0], [[]], sampler, 3)
        found.append(grown)
        one.abort()
        draft = _core.Draft([4, 5, 6], [-1, 0, 0])
        (result,) = one.step([_core.Entry(0, [5], sampler, draft=draft, reports=[(0, 4, 2)])])
        found.append(([d.token for d in result.drawn], result.nodes))
        found.append([(r.token, r.logprob, r.top) for r in result.reports])
    texts = model.generate([PROMPT, PROMPT[:9], "b"], n_predict=12, sampling=SAMPLING)
    found.append([(text.tokens, text.text) for text in texts])
    with speculator(model, Speculation(method="lookup")) as drafts:
        done = model.generate("abcabcab", n_predict=12, sampling=SAMPLING, speculator=drafts)
        found.append(done.tokens)
    with speculator(model, Speculation(method="draft", draft_models=[(model, [0, 2])])) as drafts:
        done = model.generate(PROMPT, n_predict=9, sampling=SAMPLING, speculator=drafts)
        found.append(done.tokens)
    return found


@pytest.mark.parametrize("placement", PLACEMENTS, ids=IDS)
def test_all_that_a_model_tells_is_what_one_team_tells(path: Path, placement: Placement) -> None:
    with pyflow.load(path, n_threads=2, numa="off") as model:
        expected = told(model)
    with pyflow.load(path, numa=placement) as model:
        assert model.placement == placement
        assert model.n_threads == placement.n_threads
        assert len(model.stages) == len(placement.members)
        assert told(model) == expected


def test_members_have_the_weights_once(path: Path) -> None:
    one, two = (pyflow.plan(path, numa=numa) for numa in (members(1), members(1, 1)))
    assert one.weights < two.weights < 1.1 * one.weights  # norms are whole on all
    assert two.kv == one.kv


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("placement", PLACEMENTS, ids=IDS)
def test_a_session_goes_on_under_any_placement(
    path: Path, tmp_path: Path, placement: Placement, cache_type: str
) -> None:
    def go(numa: Placement | str, session: Path | None, n: int, prompt: Sequence[int]) -> tuple:
        with pyflow.load(path, n_threads=None, numa=numa) as model:
            done = model.generate(
                prompt, n_predict=n, sampling=SAMPLING, session=session, cache_type=cache_type
            )
        return done.tokens, done.timings.prompt_n

    with pyflow.load(path) as model:
        prompt = model.tokenizer.encode(PROMPT)
    whole, _ = go("off", None, 24, prompt)
    for first, then in ((placement, "off"), ("off", placement), (placement, placement)):
        session = tmp_path / f"{first}{then}"[:20]
        go(first, session, 10, prompt)
        tokens, n_read = go(then, session, 14, [*prompt, *whole[:10]])
        assert tokens == whole[10:]
        assert n_read <= 2
        session.unlink()


def stages(path: Path, n: int) -> list[_core.Stage]:
    with pyflow.load(path, numa=members(*[1] * n)) as model:
        return [*model.stages]


class Detours:
    """Links whose bytes come in pieces of any size, late, and in any order among the pairs."""

    def __init__(self, n: int, seed: int) -> None:
        ends = [[-1] * n for _ in range(n)]
        self._ways: list[tuple[socket.socket, socket.socket]] = []
        for a in range(n):
            for b in range(a):
                (one, left), (right, other) = socket.socketpair(), socket.socketpair()
                ends[a][b], ends[b][a] = one.detach(), other.detach()
                self._ways += [(left, right), (right, left)]
        self.links = [_core.Link.sockets(ends[m], m) for m in range(n)]
        self._rng, self._ended = random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self) -> None:
        while not self._ended.is_set():
            for come, go in self._rng.sample(self._ways, len(self._ways)):
                size = self._rng.choice([1, 20, 300, 1 << 16])
                with suppress(BlockingIOError):
                    go.sendall(come.recv(size, socket.MSG_DONTWAIT))
            time.sleep(self._rng.choice([0, 0, 0, 1e-4, 1e-3]))

    def __enter__(self) -> list[_core.Link]:
        return self.links

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for way, _ in self._ways:
            way.close()


def led(stages: Sequence[_core.Stage], links: Sequence[_core.Link]) -> _core.Context:
    first, *others = (
        _core.Context(stage, n_ctx=64, n_seq_max=2, n_batch=16, cache_type="f16", link=link)
        for stage, link in zip(stages, links, strict=True)
    )
    first.lead(others)
    return first


def rows(context: _core.Context, tokens: Sequence[int], at: int) -> NDArray[np.float32]:
    places = np.arange(at, at + len(tokens), dtype=np.int32)
    return context.forward(np.array(tokens, np.int32), places, 0, np.arange(len(tokens)))


@pytest.mark.parametrize("n", [2, 4])
def test_links_of_any_order_and_delay_change_no_bit(path: Path, n: int) -> None:
    with pyflow.load(path, numa="off") as model:
        tokens = np.random.default_rng(n).integers(0, model.spec.n_vocab, 30).tolist()
        whole = model.logits(tokens)
    parts = stages(path, n)
    for seed in range(4):
        with Detours(n, seed) as links:
            one = led(parts, links)
            found, at = [], 0
            for size in (7, 1, 1, 2, 16, 1, 2):
                found.append(rows(one, tokens[at : at + size], at))
                at += size
            assert np.concatenate(found).tobytes() == whole.tobytes()
            del one


def test_a_step_that_fails_leaves_no_cell_on_any_member(path: Path) -> None:
    one = context(stages(path, 2), n_ctx=40, n_seq_max=2, n_batch=16, cache_type="f16")
    before = rows(one, [1, 2, 3], 0)

    def free() -> list[int]:
        return [each.n_free for each in (one, *one.others)]

    left = free()
    with pytest.raises(ShapeError):
        rows(one, [1 << 20], 3)
    with pytest.raises(ShapeError):
        rows(one, [1], 2)  # taken
    one.forward([5, 6], [3, 4], 0, [], "decode", [-1, 0])  # pending
    with pytest.raises(ShapeError):
        one.forward([5], [9], 0, [], "decode", [0])
    full = _core.Sampler(temperature=0.0)
    wrong = _core.Entry(0, [1], full, masks=np.zeros(-(-before.shape[1] // 32), np.uint32))
    (result,) = _core.step(one, [wrong])
    assert result.failed
    assert free() == left
    if path.stem == "0":  # a window is never full
        for at in range(3, 40):
            rows(one, [1], at)
        with pytest.raises(ResourceError):
            rows(one, [1], 40)
    assert len(set(free())) == 1
    one.clear()
    assert rows(one, [1, 2, 3], 0).tobytes() == before.tobytes()


def test_a_step_that_is_stopped_stops_on_all_members(path: Path) -> None:
    one = context(stages(path, 2), n_ctx=3000, n_seq_max=1, n_batch=2000, cache_type="f16")
    expected = rows(one, [1, 2], 0)
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.is_set():
            one.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    n_done = 0
    try:
        with suppress(CancelledError):
            while n_done < 999:
                n_done += 1
                rows(one, [3] * 2000, 2)
                one.seq_rm(0, 2, -1)
    finally:
        ended.set()
        thread.join()
    assert n_done < 999
    one.seq_rm(0, 0, -1)
    assert rows(one, [1, 2], 0).tobytes() == expected.tobytes()


def test_a_lost_link_is_an_error_at_once_and_from_then_on(path: Path) -> None:
    links = _core.Link.threads(2)
    one = led(stages(path, 2), links)
    rows(one, [1, 2], 0)
    links[1].abort()
    for _ in range(2):
        with pytest.raises(LinkError):
            rows(one, [3], 2)
    assert [each.seq_pos_max(0) for each in (one, *one.others)] == [1, 1]


def test_only_member_0_leads_and_only_all_others(path: Path) -> None:
    parts, links = stages(path, 2), _core.Link.threads(2)
    sizes = {"n_ctx": 8, "n_seq_max": 1, "n_batch": 4, "cache_type": "f16"}
    first, second = (
        _core.Context(stage, link=link, **sizes) for stage, link in zip(parts, links, strict=True)
    )
    for leader, others in ((first, []), (second, [first]), (first, [first])):
        with pytest.raises(ShapeError, match="member 0 of 2"):
            leader.lead(others)
    smaller = _core.Context(parts[1], link=links[1], **(sizes | {"n_ctx": 4}))
    with pytest.raises(ShapeError, match="same sizes"):
        first.lead([smaller])


def test_what_members_cannot_have_is_said_and_one_team_takes_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.warns(PlacementWarning, match=r"4 heads for 5 members; .* numa local"),
        pyflow.load(path, numa=members(1, 1, 1, 1, 1)) as model,
    ):
        assert (model.placement.mode, len(model.stages)) == ("local", 1)
    with (
        pytest.warns(PlacementWarning, match="numa members: all threads are on one socket"),
        pyflow.load(path, numa="members", n_threads=1) as model,
    ):
        assert len(model.stages) == 1
    with (
        pyflow.load(path, numa=members(1, 1)) as model,
        model.context(64) as one,
        pytest.raises(UnsupportedError, match="one member only"),
    ):
        one.observe(_core.InputMoments(model.stage))
    memory = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(ResourceError, match="the weights take"):
        pyflow.load(path, numa=members(1, 1))
