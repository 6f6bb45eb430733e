"""Stages of real models: whatever runs were guesses, the draws are those of plain decoding."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pyflow import ResourceError, SamplingParams
from pyflow.cluster.run.threads import ThreadPipeline
from pyflow.cluster.wire.messages import Accept, Frame, Op, Remove, Run, Share

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0, seed=0)
# Few tokens to choose from, so that a draw depends on which ones were drawn before.
SAMPLED = SamplingParams(
    repeat_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    logit_bias=dict.fromkeys(range(400, 412), 20.0),
    seed=11,
)
POLICIES = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@POLICIES
@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_stages_draw_what_plain_decoding_draws(
    rig: Any, n_stages: int, sampling: SamplingParams
) -> None:
    head = rig.head(n_stages, sampling)
    drawn = head.decode(rig.prompt, 6)
    assert drawn == rig.plain(rig.prompt, sampling, 6)
    # A second job over the same cells, as in a chat; the first one has left a guess behind.
    head.do(Share(0, 3, 2, 5))
    more = [*rig.prompt, *drawn, *rig.prompt[1:5]]
    keep = len(rig.prompt) + 4
    head = rig.head(n_stages, sampling, keep=keep)
    assert head.kept == keep
    assert all(n == rig.sizes["n_ctx"] - keep for n in head.n_free())
    assert head.decode(more, 2, start=keep) == rig.plain(more, sampling, 2)


@POLICIES
def test_guesses_in_other_sequences_are_drawn_after_as_if_they_were_the_text(
    rig: Any, sampling: SamplingParams
) -> None:
    text, n = rig.prompt, len(rig.prompt)
    t = rig.plain(text, sampling, 8)
    head = rig.head(2, sampling)
    assert head.decode(text, 1) == t[:1]
    free = head.n_free()

    # Three runs, one after the other, each in a sequence of its own; all is right up to t[3].
    guesses = [t[3], rig.wrong(t[4]), t[5]]
    known = head.run(t[:3], n, Share(0, 1, 0, -1), seq=1, n_draws=3)
    mixed = head.run(guesses, n + 3, Share(1, 2, 0, -1), seq=2, path=tuple(t[:3]), n_draws=3)
    lost = head.run(t[6:7], n + 6, Share(2, 3, 0, -1), seq=3, path=(*t[:3], *guesses), n_draws=1)
    assert list(known.draws) == t[1:4]
    assert [mixed.draws[0]] == t[4:5]
    line = [*text, *t[:3], *guesses]
    assert [mixed.draws[1]] == rig.plain(line[:-1], sampling, 1)
    assert [mixed.draws[2]] == rig.plain(line, sampling, 1)
    assert list(lost.draws) == rig.plain([*line, t[6]], sampling, 1)

    # What was right becomes the text, the rest goes.
    head.do(
        Share(1, 0, n, n + 3),
        Share(2, 0, n + 3, n + 4),
        *(Remove(seq, 0, -1) for seq in (1, 2, 3)),
        Accept(tuple(t[:4])),
    )
    assert head.n_free() == [f - 4 for f in free]
    assert list(head.run(t[4:6], n + 4, n_draws=2).draws) == t[5:7]
    assert list(head.run(t[6:7], n + 6, Accept(tuple(t[4:6]))).draws) == t[7:]
    assert head.n_free() == [f - 7 for f in free]


@pytest.mark.parametrize("rig", ["gemma3"], indirect=True)
def test_a_wrong_guess_beyond_the_window_evicts_nothing(rig: Any) -> None:
    text = np.random.default_rng(3).integers(0, rig.model.spec.n_vocab, 530).tolist()
    t = rig.plain(text, SAMPLED, 4)
    head = rig.head(2, SAMPLED)
    assert head.decode(text, 1, chunk=rig.sizes["n_batch"]) == t[:1]
    free, wrong = head.n_free(), [rig.wrong(t[1])] * 20
    head.run([t[0], *wrong], 530, Share(0, 1, 0, -1), seq=1)
    head.run(wrong, 551, Share(1, 2, 0, -1), seq=2, path=(t[0], *wrong))
    head.stages[1].cancel([4])
    head.run(wrong, 571, Share(2, 3, 0, -1), seq=3, path=(t[0], *wrong, *wrong))
    head.do(*(Remove(seq, 0, -1) for seq in (1, 2, 3)))
    assert head.n_free() == free
    assert list(head.run(t[:3], 530, n_draws=3).draws) == t[1:]

    # In sequence 0 itself, the same guesses would have been the end: so far goes the test.
    head.run(wrong, 533)
    head.do(Remove(0, 533, -1))
    with pytest.raises(ResourceError, match="reaches back"):
        head.run(t[3:], 533)
    assert rig.head(2, SAMPLED, keep=533).kept == 0


@pytest.mark.parametrize(
    ("rig", "own_pools"),
    [("smollm2", True), ("smollm2", False), ("gemma3", False)],
    indirect=["rig"],
)
def test_threads_draw_the_same_in_one_job_after_another(rig: Any, own_pools: bool) -> None:
    head = rig.head(3, SAMPLED, own_pools=own_pools)
    n_threads = threading.active_count()
    with ThreadPipeline(head.stages) as pipeline:
        text, keep = rig.prompt, 0
        for _ in range(2):
            assert pipeline.reset(SAMPLED, keep=keep) == keep
            ops: tuple[Op, ...] = (Accept(tuple(text[:keep])),)
            for at in range(keep, len(text), 5):
                part = tuple(text[at : at + 5])
                last = at + 5 >= len(text)
                pipeline.send(Frame(0, at, ops, Run(at, 0, at, part, n_draws=int(last))))
                ops = (Accept(part),)
            draws = [pipeline.receive(60).draws for _ in range(keep, len(text), 5)]
            assert list(draws[-1]) == rig.plain(text, SAMPLED, 1)
            text, keep = [*text, *draws[-1], *text[:3]], len(text)
    assert threading.active_count() == n_threads
