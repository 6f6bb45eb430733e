"""Recorded requests, repeated alone: the same bits."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pyflow.errors import PyflowError
from pyflow.model import Model
from pyflow.serve.record.exchange import essence, read
from pyflow.serve.replay import replay
from pyflow.serve.settings import Settings
from tests.pyflow.serve.conftest import Server

MESSAGES = [{"role": "user", "content": "Name three colours."}]
REQUESTS = [
    ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, "n": 2, "temperature": 1.5}),
    ("/v1/completions", {"prompt": ["One, two,", "One, two, three"], "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": "Red, green and", "stream": True, "seed": 7}),
    ("/v1/messages", {"messages": MESSAGES}),
    ("/v1/responses", {"input": "Name three colours.", "stream": True, "max_output_tokens": 16}),
    ("/v1/embeddings", {"input": ["a", "b c"]}),
    ("/tokenize", {"prompt": "a b"}),
]


@pytest.mark.model
def test_what_was_answered_under_load_is_answered_again_alone(
    smollm2: Model, tmp_path: Path
) -> None:
    path = tmp_path / "record.jsonl"
    server = Server(
        {"smollm2": smollm2}, Settings(port=0, n_ctx=256, n_parallel=4, record=str(path))
    )
    threads = []
    for route, body in REQUESTS * 2:
        whole = {"model": "smollm2", **body}
        if {"messages", "prompt"} & body.keys() and route != "/tokenize":
            whole["max_tokens"] = 12
        threads.append(threading.Thread(target=server.request, args=("POST", route, whole)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    server.stop()
    assert path.stat().st_mode & 0o777 == 0o600
    exchanges = [*read(path)]
    assert sorted(e.path for e in exchanges) == sorted(route for route, _ in REQUESTS * 2)
    found = [*replay("smollm2", smollm2, Settings(), iter(exchanges))]
    assert [each.differs for each in found] == [[]] * len(exchanges)
    wrong = next(each for each in exchanges if each.path == "/tokenize")
    wrong.response = wrong.response.replace("[", "[1,")
    (one,) = replay("smollm2", smollm2, Settings(), iter([wrong]))
    assert one.differs


def test_parts_of_a_stream_are_put_together_however_they_were_cut() -> None:
    def stream(*parts: str) -> str:
        return (
            "".join(
                "data: "
                + json.dumps({"id": part, "choices": [{"index": 1, "delta": {"content": part}}]})
                + "\n\n"
                for part in parts
            )
            + "data: [DONE]\n\n"
        )

    assert essence(stream("ab", "c")) == essence(stream("a", "bc"))
    assert essence(stream("ab", "c")) != essence(stream("ab", "d"))


@pytest.mark.model
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_answers_go_on_when_the_record_cannot_be_written(
    smollm2: Model, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server({"smollm2": smollm2}, Settings(port=0, n_ctx=256, record="/dev/full"))
    for _ in range(2):
        assert server.request("POST", "/tokenize", {"prompt": "a b"})[0] == 200
    server.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_file_that_is_no_record_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"path": 1}\n')
    with pytest.raises(PyflowError, match="line 1"):
        [*read(path)]
    whole = b'{"path":"/tokenize","request":{},"response":"{}","n_ctx":9}\n'
    path.write_bytes(whole + whole[:20])  # the disk was full
    assert [exchange.n_ctx for exchange in read(path)] == [9]
    with pytest.raises(PyflowError, match="missing"):
        [*read(tmp_path / "missing")]
