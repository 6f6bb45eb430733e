"""Members with different plans are told at once, both by name."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow import PyflowError, SamplingParams, _core
from pyflow.cluster.run.meeting import meet
from pyflow.cluster.run.stage import Membership, ModelStage
from pyflow.cluster.run.threads import ThreadPipeline

from ...tiny_models import write_model


def test_a_member_says_in_what_it_differs_from_the_first_one() -> None:
    links = _core.Link.threads(3)
    plans = [{"layers": "0 to 3", "n_ctx": n_ctx} for n_ctx in (64, 64, 32)]
    with ThreadPoolExecutor(3) as threads:
        met = [threads.submit(meet, *both) for both in zip(links, plans, strict=True)]
        assert [each.result(10) for each in met[:2]] == [None, None]
        host = socket.gethostname()
        with pytest.raises(
            PyflowError,
            match=f"member 2 on {host}: n_ctx: expected 64, as member 0 on {host} has, found 32",
        ):
            met[2].result(10)


def test_a_pipeline_ends_with_what_a_member_says(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", n_layers=2, window=0)
    sampling = SamplingParams(seed=0)

    def member(model: pyflow.Model, link: _core.Link, n_batch: int) -> ModelStage:
        how: Any = {"layers": range(2), "pool": _core.ThreadPool(1), "sampling": sampling}
        place = Membership(link)
        return ModelStage(
            model.checkpoint, model.spec, place=place, n_ctx=64, n_batch=n_batch, **how
        )

    with pyflow.load(path, n_threads=1) as model:
        first, second = (
            member(model, *both) for both in zip(_core.Link.threads(2), (8, 16), strict=True)
        )
        with (
            ThreadPipeline([first], [second]) as pipeline,
            pytest.raises(PyflowError, match=r"n_batch: expected 8, .* found 16"),
        ):
            pipeline.reset(sampling)
