"""The terminal of `pyflow chat`: questions, commands, and the ways out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pyflow.cli.terminal import repl
from pyflow.cli.terminal.progress import goes_in_circles
from pyflow.generate.session import ChatSession
from pyflow.sampling import SamplingParams

Talk = Callable[..., tuple[str, str]]


@pytest.fixture
def session(fake_model: Any) -> ChatSession:
    return ChatSession(fake_model, system="S", sampling=SamplingParams(seed=1))


@pytest.fixture
def talk(session: ChatSession, capsys: pytest.CaptureFixture[str]) -> Talk:
    """talk(*lines): types these lines, then Ctrl-D; what came to standard output and error.

    A line that is an exception is raised, as Ctrl-C is.
    """

    def talk_(*lines: str | BaseException) -> tuple[str, str]:
        waiting: Iterator[str | BaseException] = iter(lines)

        def read(_: str) -> str:
            line = next(waiting, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        repl.Repl(session, "fake", read, timings=True).run()
        assert next(waiting, None) is None
        out, err = capsys.readouterr()
        return out, err

    return talk_


def roles(session: ChatSession) -> list[str]:
    return [m.role for m in session.messages]


def test_answers_go_to_stdout_and_the_rest_to_stderr(talk: Talk, session: ChatSession) -> None:
    out, err = talk("One?", "  Two?  ")
    answers = [m.content for m in session.messages if m.role == "assistant"]
    assert out == "".join(f"{answer}\n" for answer in answers)
    assert err.count("answer ") == 2
    assert err.count("/s") == 4
    assert [m.content for m in session.messages if m.role == "user"] == ["One?", "Two?"]


def test_ctrl_c_at_the_prompt_says_how_to_leave(talk: Talk, session: ChatSession) -> None:
    _, err = talk(KeyboardInterrupt(), "", "One?")
    assert "/exit or press Ctrl-D" in err
    assert roles(session) == ["system", "user", "assistant"]


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
def test_exit_leaves(session: ChatSession, word: str) -> None:
    lines = iter([word])
    repl.Repl(session, "fake", lambda _: next(lines)).run()


def test_ctrl_c_stops_the_answer_and_not_the_program(
    talk: Talk, session: ChatSession, fake_model: Any
) -> None:
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            signal.raise_signal(signal.SIGINT)

    fake_model.contexts[0].before_call = interrupt
    _, err = talk("One?", "Two?")
    assert err.count("(stopped)") == 1
    assert len(session.messages[2].content) == 2
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]


def test_three_quotes_hold_several_lines(talk: Talk, session: ChatSession) -> None:
    talk('"""/help', "  two", "", 'three"""', '"""one line"""', '"""', "x", '"""')
    asked = [m.content for m in session.messages if m.role == "user"]
    assert asked == ["/help\n  two\n\nthree", "one line", "x"]


def test_ctrl_c_and_ctrl_d_leave_three_quotes(talk: Talk, session: ChatSession) -> None:
    talk('"""one', KeyboardInterrupt(), '"""two')
    assert roles(session) == ["system"]


def test_pasted_lines_are_one_question(talk: Talk, session: ChatSession) -> None:
    talk("one\ntwo")
    assert session.messages[1].content == "one\ntwo"


def test_regen_and_clear(talk: Talk, session: ChatSession) -> None:
    out, _ = talk("One of them?", "/regen")
    first, second = out.splitlines()
    assert first != second
    assert session.messages[-1].content == second
    talk("/clear")
    assert roles(session) == ["system"]
    _, err = talk("/regen")
    assert "error: " in err


def test_save_and_load(talk: Talk, session: ChatSession, tmp_path: Path) -> None:
    path = tmp_path / "with blank.json"
    _, err = talk("One?", f"/save '{path}'", "/clear", f"/load '{path}'")
    assert roles(session) == ["system", "user", "assistant"]
    assert "user: One?" in err
    _, err = talk("/save", "/load a b", "/load /no/such", "/save 'x")
    assert err.count("expected one file name") == 2
    assert "'x" in err
    assert "/no/such: cannot be read" in err


def test_save_replaces_conversations_alone(talk: Talk, tmp_path: Path) -> None:
    path, other = tmp_path / "saved", tmp_path / "diary"
    other.write_text("dear diary")
    _, err = talk("One?", f"/save {path}", "Two?", f"/save {path}", f"/save {other}")
    assert err.count("(saved as") == 2
    assert other.read_text() == "dear diary"
    assert str(other) in err.splitlines()[-1]


def test_stop_texts_are_set(talk: Talk, session: ChatSession) -> None:
    talk(r'/set stop "a b" \\n')
    assert session.stop == ["a b", "\n"]
    talk("/set stop")
    assert session.stop == []


def test_only_long_repetitions_are_circles() -> None:
    text = [*range(304)]
    assert not goes_in_circles(text + [7, 8, 9] * 20)
    assert goes_in_circles(text + [7, 8, 9] * 112)
    assert not goes_in_circles(text + [*range(49)] * 16)
    assert not any(goes_in_circles([5] * n) for n in range(240))
    assert goes_in_circles([5] * 240)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/save .", ".: expected a conversation, found a folder"),
        ("/save /", "/: expected a conversation, found a folder"),
        ('/save ""', "expected one file name"),
        ("/save ~nouser/x", "~nouser/x: Could not determine home directory"),
        ("/load ~nouser", "~nouser: Could not determine home directory"),
        ("/load /dev/zero", "/dev/zero: "),
        ("/load a\0b", "cannot be read: "),
        ("/save a\0b", "cannot be written: "),
    ],
)
def test_no_command_ends_the_chat(
    talk: Talk, session: ChatSession, line: str, message: str
) -> None:
    _, err = talk(line, "One?")
    told = err.splitlines()[1]  # after the greeting
    assert told.startswith("error: ")
    assert message in told
    assert roles(session) == ["system", "user", "assistant"]


def test_a_fault_does_not_end_the_chat(
    talk: Talk, session: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "save", lambda _: 1 / 0)
    _, err = talk("/save x", "One?")
    assert "error: ZeroDivisionError: division by zero; this is a fault of pyflow" in err
    assert roles(session) == ["system", "user", "assistant"]


def test_control_characters_of_a_file_are_not_obeyed(
    talk: Talk, session: ChatSession, tmp_path: Path
) -> None:
    session.system = "\x1b[2J\x9b\u202e\nS"
    path = tmp_path / "x"
    _, err = talk(f"/save {path}", f"/load {path}", "/set")
    assert err.count("\\x1b[2J\\x9b\\u202e\nS") == 2
    assert "\x1b" not in err


def test_set_and_clear_tell_what_they_did(talk: Talk, session: ChatSession) -> None:
    _, err = talk("/set temp 0.5", "/set system Be kind.", "/set n 5", "/clear")
    assert err.splitlines()[1:] == [
        "temperature 0.5",
        "system Be kind.",
        "n_predict 5",
        "(forgotten, but not the system message)",
    ]
    session.system = None
    assert "(forgotten)" in talk("/clear")[1]


def test_set_changes_parameters(talk: Talk, session: ChatSession) -> None:
    talk("/set temp 0.5", "/set --top-k 7", "/set repeat-penalty 1.5", "/set seed 9", "/set n 5")
    assert session.sampling == SamplingParams(temperature=0.5, top_k=7, repeat_penalty=1.5, seed=9)
    assert session.n_predict == 5
    talk("/set system Be  kind.")
    assert session.system == "Be  kind."
    talk("/set system")
    assert session.system is None
    _, err = talk("/set")
    assert "temperature 0.5" in err
    assert "n_predict 5" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temp hot", "temperature: expected a number, found 'hot'"),
        ("/set temp", "temperature: expected a number"),
        ("/set temp -1", "temperature: expected 0"),
        ("/set top_k 1.5", "top_k: expected a number"),
        ("/set n_predict 0", "n_predict: expected 1 or more"),
        ("/set colour red", "no parameter is called 'colour'; there are system, stop, n_predict"),
        ("/hlp", "no command is called '/hlp'"),
    ],
)
def test_mistakes_are_told_and_change_nothing(
    talk: Talk, session: ChatSession, line: str, message: str
) -> None:
    before = session.sampling
    _, err = talk(line)
    assert f"error: {message}" in err
    assert session.sampling == before
    assert session.n_predict == -1


def test_a_path_is_no_command(talk: Talk, session: ChatSession) -> None:
    talk("/etc/fstab says what?")
    assert len(session.messages) == 3


def test_help_names_every_command(talk: Talk) -> None:
    _, err = talk("/help")
    for word in ("/clear", "/regen", "/save", "/load", "/set", "/exit", "Ctrl-C", '"""'):
        assert word in err


def test_the_line_editor_takes_a_paste_whole_and_keeps_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    history = InMemoryHistory()
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        read = repl._reader(history)
        keys.send_text("\x1b[200~one\r\ntwo\x1b[201~ three\r")
        assert read("> ") == "one\ntwo three"
        keys.send_text("\x1b[A\r")  # the arrow up
        assert read("> ") == "one\ntwo three"
        keys.send_text("\x03")
        with pytest.raises(KeyboardInterrupt):
            read("> ")
        keys.send_text("\x04")
        with pytest.raises(EOFError):
            read("> ")


def test_history_is_kept_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    repl._history().append_string("hello")
    (file,) = tmp_path.rglob("chat_history")
    assert file.stat().st_mode & 0o777 == 0o600
    assert repl._history().load_history_strings is not None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert isinstance(repl._history(), InMemoryHistory)
    assert "is not kept" in capsys.readouterr().err
