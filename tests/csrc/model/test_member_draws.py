"""Members draw the tokens of one process from parts of logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyflow import _core
from pyflow.sampling import SamplingParams

from .test_blocks import TOKENS
from .test_members import Sharing
from .tiny_models import N_EMBD, TINY, Draft, write

ALL, KEPT = 1500 * 4, 40 * 8 + 8  # bytes of a row of logits, and of a member's part of it
DRAWS = [
    (SamplingParams(temperature=0.0, seed=5), 8 + 8),
    (SamplingParams(seed=5), KEPT),
    (SamplingParams(seed=5, repeat_penalty=1.2, presence_penalty=0.3), KEPT),
    (SamplingParams(seed=5, top_k=0, top_p=1.0, min_p=0.0), 8 + 8),
    (SamplingParams(seed=5, top_k=0), ALL),
    (SamplingParams(seed=5, n_logprobs=2), ALL),
]


@pytest.mark.parametrize(("params", "nbytes"), DRAWS)
def test_members_draw_the_same_tokens_from_parts(
    params: SamplingParams, nbytes: int, tmp_path: Path
) -> None:
    t = Draft()
    spec = replace(TINY["shared_expert"](t), n_vocab=1500)
    t.tensors["embd"] = np.random.default_rng(9).normal(size=(1500, N_EMBD)).astype(np.float32)
    n = 3
    of = Sharing(write(tmp_path / "tiny.safetensors", t), spec, n)

    def text(c: _core.Context) -> list[object]:
        sampler, tokens = params.sampler(), [int(t) for t in TOKENS[:6]]
        out: list[object] = []
        for _ in range(8):
            (found,) = _core.step(c, [_core.Entry(0, tokens, sampler)])
            found.check()
            tokens = [found.drawn[0].token]
            out += [tokens[0], found.drawn[0].logprob if params.n_logprobs else 0.0]
        for policy in ("exact", "rejection"):  # of a tree whose first node is right, or not
            draft = _core.Draft([7, 3, 4], [-1, -1, 0], 2, asked=[-1, 2], policy=policy)
            entry = _core.Entry(0, tokens, sampler, draft=draft)
            (found,) = _core.step(c, [entry])
            found.check()
            out += [*[s.token for s in found.drawn], *found.nodes, *found.answers]
            tokens = [found.drawn[-1].token]
        return out

    expected = text(of.one)
    assert of.each(text) == [expected] * n
    before = [link.gathers[1] for link in of.links]
    tokens = [int(t) for t in TOKENS[:6]]
    of.all("seq_rm", 0, 0, -1)
    sampler = [params.sampler() for _ in range(n)]
    entries = [_core.Entry(0, tokens, each) for each in sampler]
    list(of.threads.map(lambda c, e: _core.step(c, [e])[0].check(), of.members, entries))
    layers = len(tokens) * (sum(of.stages[0].rounds()) + 4 * N_EMBD)
    sent = sum(link.gathers[1] for link in of.links) - sum(before) - (n - 1) * layers
    assert sent == (n - 1) * (nbytes if nbytes == ALL else n * nbytes)
