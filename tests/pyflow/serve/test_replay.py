"""Recorded requests, repeated alone: the same bits."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyflow.errors import PyflowError
from pyflow.model import Model, load
from pyflow.serve.record.exchange import essence, read
from pyflow.serve.replay import replay
from pyflow.serve.settings import Settings
from tests.pyflow.serve.conftest import Server
from tests.pyflow.tiny_models import write_model

MESSAGES = [{"role": "user", "content": "Name three colours."}]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
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


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    if platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("tiles are emulated on x86-64 alone")
    monkeypatch.setenv("PYFLOW_ISA", "amx_emulated")
    path = tmp_path / "tiny.gguf"
    write_model(path, n_layers=2, window=0, has_tokenizer=True, chat_template=TEMPLATE)
    with load(path, n_threads=2, quantize="q8_0") as model:
        assert model.stage.prefill == "bf16"
        yield model


def talk(server: Server, name: str) -> None:
    """Two turns, the second of which gives the first answer back; that once more; and texts."""
    how: dict[str, Any] = {"model": "tiny", "seed": 5, "max_tokens": 12}
    asked: list[dict[str, str]] = [{"role": "user", "content": f"{name} asks for a colour"}]
    chat = "/v1/chat/completions"
    first = server.post(chat, messages=asked, **how)
    answer = first["choices"][0]["message"]["content"]
    asked += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "and another"},
    ]
    second = server.post(chat, messages=asked, logprobs=True, top_logprobs=2, **how)
    again = server.post(chat, messages=asked, logprobs=True, top_logprobs=2, **how)
    assert again["choices"] == second["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    for prompt in ("red and green", f"red and green, {name}"):
        whole = server.post("/v1/completions", prompt=prompt, echo=True, logprobs=2, **how)
        rest = server.post("/v1/completions", prompt=prompt, logprobs=2, **how)
        assert whole["choices"][0]["text"] == prompt + rest["choices"][0]["text"]
        found = rest["choices"][0]["logprobs"]["token_logprobs"]
        assert whole["choices"][0]["logprobs"]["token_logprobs"][-len(found) :] == found


def test_so_is_what_was_answered_where_prompts_have_an_arithmetic_of_their_own(
    tiny: Model, tmp_path: Path
) -> None:
    record = tmp_path / "record.jsonl"
    settings = Settings(port=0, n_ctx=256, n_parallel=4, record=str(record))
    server, failed = Server({"tiny": tiny}, settings), []

    def user(name: str) -> None:
        try:
            talk(server, name)
        except BaseException as error:
            failed.append(error)

    users = [threading.Thread(target=user, args=(name,)) for name in ("Ada", "Bob", "Cy")]
    for each in users:
        each.start()
    for each in users:
        each.join()
    server.stop()
    assert failed == []
    exchanges = [*read(record)]
    assert len(exchanges) == 7 * len(users)
    found = [*replay("tiny", tiny, Settings(), iter(exchanges))]
    assert [each.differs for each in found] == [[]] * len(exchanges)


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
