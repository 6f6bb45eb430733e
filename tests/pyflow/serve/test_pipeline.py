"""A server over the stages of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.strategy import iterative
from pyflow.model import Model
from pyflow.serve.settings import Settings

from ..generate import students
from .conftest import Server

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Name a colour and say why."}],
    "max_tokens": 12,
    "seed": 3,
}


@pytest.mark.model
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
                ("/v1/chat/completions", BODY | {"mirostat": 2}, "mirostat"),
                ("/v1/completions", {"prompt": "a", "banned_strings": ["b"]}, "banned_strings"),
            ]:
                status, error = other.error(path, **asked)
                assert (status, error["param"]) == (400, param)
        finally:
            other.stop()


def test_a_pipeline_reads_the_source_of_a_request(tmp_path: Path) -> None:
    students.write_folder(tmp_path / "model")
    with (
        pyflow.load(tmp_path / "model", n_threads=1) as alone,
        in_threads(alone, strategy=iterative(), n_stages=(2, 2), n_ctx=64) as pipelined,
    ):
        server = Server({"student": pipelined}, Settings(port=0))
        try:
            for prompt in ([5, 17, 80, 33], [6, 6, 12], [5, 17, 80, 33]):
                found = server.post("/v1/completions", prompt=prompt, max_tokens=9, temperature=0)
                sampling = pyflow.SamplingParams(temperature=0)
                expected = alone.generate(prompt, n_predict=9, sampling=sampling)
                assert found["choices"][0]["text"] == expected.text
            status, error = server.error("/v1/completions", prompt=[5] * 65, max_tokens=2)
            assert (status, error["param"]) == (400, "prompt")
        finally:
            server.stop()
