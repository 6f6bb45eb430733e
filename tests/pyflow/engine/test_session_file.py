"""Session files: what a process has read, another one need not read again, to the same bit."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyflow.formats
import pytest
from pyflow.formats.safetensors_writer import NewTensor, SafetensorsWriter

import pyflow
from pyflow import ChatSession, PyflowError, SamplingParams, SessionWarning, _core
from pyflow.chat import ChatTemplate
from pyflow.cli import main
from tests.pyflow.cli.terminal import EDITING, Terminal
from tests.pyflow.tiny_models import write_model

SAMPLING = SamplingParams(temperature=0.9, top_k=0, seed=5, repeat_penalty=1.2)
PROMPT = "a prompt that is longer than the window of the model, which sees forty tokens"
ISAS = [isa for isa in _core.runnable_isas() if isa != "scalar"]


@pytest.fixture(scope="module", params=[0, 40])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    return write_model(file, n_layers=3, window=request.param, n_embd=128, has_tokenizer=True)


def answer(path: Path, prompt: str, session: Path | None, n: int = 24, **options: object) -> object:
    """The tokens, and how many of the prompt had to be computed."""
    with pyflow.load(path, n_threads=2) as model:
        done = model.generate(
            prompt,
            n_predict=n,
            sampling=SAMPLING,
            session=session,
            **options,  # type: ignore[arg-type]
        )
    return done.tokens, done.timings.prompt_n


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_what_comes_after_a_session_is_what_would_have_come(
    path: Path, tmp_path: Path, cache_type: str
) -> None:
    session = tmp_path / "s"
    whole, n_read = answer(path, PROMPT, None, cache_type=cache_type)
    assert answer(path, PROMPT, session, 10, cache_type=cache_type) == (whole[:10], n_read)
    with pyflow.load(path) as model:
        prompt = [*model.tokenizer.encode(PROMPT), *whole[:10]]
    # The draws belong to positions: the text goes on as if it had never stopped.
    again, n_read = answer(path, prompt, session, 14, cache_type=cache_type)
    assert (again, n_read) == (whole[10:], 1)


@pytest.mark.parametrize("isa", ISAS)
def test_a_session_goes_on_under_any_instruction_set(
    path: Path, tmp_path: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "s"
    whole, _ = answer(path, PROMPT, session)
    monkeypatch.setenv("PYFLOW_ISA", isa)
    same, n_read = answer(path, PROMPT, session)
    assert same == whole
    assert n_read <= len(PROMPT)


def test_a_prompt_that_begins_alike_keeps_what_is_the_same(path: Path, tmp_path: Path) -> None:
    session = tmp_path / "s"
    answer(path, PROMPT, session, 4)
    other = PROMPT[:60] + " and then something else"
    expected, n_whole = answer(path, other, None)
    found, n_read = answer(path, other, session)
    assert found == expected
    assert (n_read < n_whole) == (path.stem == "0")  # a window has dropped what came before


def test_a_conversation_goes_on_as_if_it_had_not_stopped(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = ["Name three rivers.", "Which is the longest?", "Why?"]
    with pyflow.load(model_path("smollm2")) as model:
        with ChatSession(model, n_predict=12, sampling=SAMPLING, system="Be brief.") as session:
            for question in questions:
                last = [chunk.text for chunk in session.ask(question)]
            expected = session.messages
        n_read = []
        for question in questions:
            with ChatSession(
                model, n_predict=12, session=tmp_path / "s", sampling=SAMPLING
            ) as chat:
                chat.system = "Be brief."
                turn = chat.ask(question)
                assert [chunk.text for chunk in turn]
                n_read.append(turn.completion.timings.prompt_n)
                assert chat.messages == expected[: len(chat.messages)]
    assert chat.messages == expected
    assert last
    assert max(n_read[1:]) < 20


def foreign(path: Path) -> None:
    shutil.copy(__file__, path)


def other_safetensors(path: Path) -> None:
    with path.open("wb") as file:
        writer = SafetensorsWriter(file, [NewTensor("x", (1,), "U8", 1)], {"format": "pt"})
        writer.write(np.zeros(1, np.uint8))
        writer.end_tensor()
        writer.close()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    path.write_bytes(data)


def of_other_notes(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"positions', b'"positiens'))
    assert path.read_bytes() != data


def of_another_version(path: Path) -> None:
    data = path.read_bytes()
    number = str(pyflow.formats.open(path).metadata["version"]).encode()
    path.write_bytes(data.replace(b'"version":"' + number, b'"version":"9' + number[1:]))


@pytest.mark.parametrize(
    "damage", [foreign, other_safetensors, cut, flipped, of_other_notes, of_another_version]
)
def test_what_is_no_session_of_the_model_is_said_and_left_alone(
    path: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    session = tmp_path / "s"
    expected, n_read = answer(path, PROMPT, session)
    damage(session)
    before = session.read_bytes()
    with pytest.warns(SessionWarning, match=str(session)):
        assert answer(path, PROMPT, session) == (expected, n_read)
    assert session.read_bytes() == before


def test_sessions_of_other_weights_or_caches_are_not_used(path: Path, tmp_path: Path) -> None:
    other = write_model(
        tmp_path / "other", n_layers=2, window=int(path.stem), n_embd=128, has_tokenizer=True
    )
    session = tmp_path / "s"
    answer(other, PROMPT, session)
    with pytest.warns(SessionWarning, match=path.stem):
        answer(path, PROMPT, session)
    session.unlink()
    answer(path, PROMPT, session, cache_type="q8_0")
    with pytest.warns(SessionWarning, match="q8_0"):
        answer(path, PROMPT, session)


def test_a_place_that_cannot_hold_a_session_is_an_error(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "long").symlink_to("a" * 256)
    names = [tmp_path / name for name in ("none/s", "pipe", "circle", "long", "a\0b")]
    for place in (tmp_path, *names, Path("/dev/null")):
        with warnings.catch_warnings(), pytest.raises(PyflowError, match=str(place)):
            answer(path, PROMPT, place)
    with pyflow.load(path) as model, pytest.raises(PyflowError, match="session"):
        model.generate(["a", "b"], session=tmp_path / "s")


def test_a_session_is_of_one_process_at_a_time_and_leaves_nothing_behind(
    path: Path, tmp_path: Path
) -> None:
    session = tmp_path / "s"
    with pyflow.load(path) as model:
        with model.stream(PROMPT, n_predict=2, session=session) as chunks:
            next(chunks)
            with pytest.raises(PyflowError, match=str(session)):
                model.stream(PROMPT, session=session)
            with pytest.raises(PyflowError, match=str(session)):
                ChatSession(model, session=session, template=template(model))
        before = session.read_bytes()
        # What fails or is never read holds nothing.
        with pytest.raises(PyflowError, match="n_ctx"):
            model.stream(PROMPT, n_ctx=3, session=tmp_path / "t")
        model.stream(PROMPT, session=tmp_path / "u")
        gc.collect()
        with ChatSession(model, session=session, template=template(model)) as chat:
            chat.ask("Hi")
    assert [*tmp_path.iterdir()] == [session]
    assert session.read_bytes() != before


def template(model: pyflow.Model) -> ChatTemplate:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return ChatTemplate(text, model.tokenizer, source="here")


def test_a_session_at_the_end_of_a_link_is_written_there(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "there").mkdir()
    link.symlink_to("there/s")
    expected, n_read = answer(path, PROMPT, link)
    assert link.is_symlink()
    again, n_again = answer(path, PROMPT, link)
    assert again == expected
    assert n_again < n_read or path.stem != "0"
    assert {*tmp_path.rglob("*")} == {link, tmp_path / "there", tmp_path / "there" / "s"}


def test_an_answer_is_printed_if_its_session_cannot_be_written(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyflow.engine.session_file.save_text", full)
    session = tmp_path / "s"
    args = ["generate", "-m", str(path), "-p", "Hi", "--raw", "-n", "2", "--session", str(session)]
    assert main([*args, "--seed", "3", "--json"]) == 1
    out, err = capsys.readouterr()
    assert len(json.loads(out)["tokens"]) == 2
    assert f"error: {session}: " in err
    assert not session.exists()


def test_a_chat_that_a_signal_ends_is_saved(path: Path, tmp_path: Path) -> None:
    number = signal.SIGHUP if path.stem == "0" else signal.SIGTERM
    session, text = tmp_path / "s", tmp_path / "template"
    text.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    options = ["-n", "3", "--session", str(session), "--chat-template", str(text)]
    terminal = Terminal([sys.executable, "-m", "pyflow", "chat", "-m", str(path), *options], env)
    terminal.wait_for(EDITING)
    terminal.type("How are you?\r")
    terminal.wait_for(EDITING)
    os.kill(terminal.pid, number)
    assert terminal.exit_code() == 128 + number
    notes = json.loads(pyflow.formats.open(session).metadata["notes"])
    assert json.loads(notes["chat"])["messages"][0]["content"] == "How are you?"
