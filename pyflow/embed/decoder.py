"""Vectors of texts by a model that writes: the hidden state of the last token, or the mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyflow.batch.request import Request, View
from pyflow.embed.encoder import Vectors
from pyflow.errors import ShapeError, UnsupportedError
from pyflow.generate.any_model import AnyModel, Options
from pyflow.generate.stream import Stream

POOLS = ("last", "mean")


def hidden_states(model: AnyModel, texts: Sequence[Sequence[int]], pool: str = "last") -> Vectors:
    """(len(texts), n_embd), not normalized. ShapeError: a text is empty, or too long.
    UnsupportedError: another pool than `POOLS`."""
    if pool not in POOLS:
        raise UnsupportedError(
            f"pool {pool!r:.40}: expected {' or '.join(POOLS)} for a model that writes"
        )
    most = model.spec.n_ctx_train
    for tokens in texts:
        if not 1 <= len(tokens) < most:
            raise ShapeError(f"text: expected 1 to {most - 1:,} tokens, found {len(tokens):,}")
    if not texts:
        return np.empty((0, model.spec.n_embd), np.float32)
    run = model.run([len(tokens) for tokens in texts], 1, Options())
    requests = [
        Request(
            view=View([*tokens]),
            sampling=model.defaults.sampling.seeded(),
            limit=limit,
            n_predict=0,
            pooling="mean" if pool == "mean" else "last",
            watched=False,
        )
        for tokens, limit in zip(texts, run.limits, strict=True)
    ]
    done = Stream(run.runner, model, requests, owned=run.owned, progress=None).read()
    return np.stack([one.pooled for one in done if one.pooled is not None])
