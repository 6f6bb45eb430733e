"""A server over the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from pyflow.cluster.model import in_threads
from pyflow.cluster.run.strategy import iterative
from pyflow.model import Model
from pyflow.serve.settings import Settings

from .conftest import Server

pytestmark = pytest.mark.model

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Name a colour and say why."}],
    "max_tokens": 12,
    "seed": 3,
}


def test_a_pipeline_answers_what_one_place_answers_and_refuses_what_needs_logits(
    smollm2: Model, server: Server
) -> None:
    with in_threads(smollm2, strategy=iterative(), n_stages=2, n_ctx=256) as pipelined:
        other = Server({"smollm2": pipelined}, Settings(port=0))
        try:
            for body in (BODY, BODY | {"seed": 4}, BODY):
                alone = server.post("/v1/chat/completions", **body)
                found = other.post("/v1/chat/completions", **body)
                assert found["choices"] == alone["choices"]
            for path, asked, param in [
                ("/v1/chat/completions", BODY | {"logprobs": True}, "logprobs"),
                ("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
                ("/v1/embeddings", {"input": "a"}, "input"),
                (
                    "/v1/chat/completions",
                    BODY | {"response_format": {"type": "json_object"}},
                    "response_format",
                ),
            ]:
                status, error = other.error(path, **asked)
                assert (status, error["param"]) == (400, param)
        finally:
            other.stop()
