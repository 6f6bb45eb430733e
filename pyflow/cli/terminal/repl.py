"""The terminal of `pyflow chat`: questions and commands."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from pyflow.cli.options.asking import unescape
from pyflow.cli.options.sampling import NUMBERS
from pyflow.cli.terminal.output import describe, print_error
from pyflow.cli.terminal.progress import reading_progress, show
from pyflow.cli.terminal.signals import EndedError
from pyflow.errors import PyflowError
from pyflow.generate.session import ChatSession
from pyflow.text import printable

_HELP = """\
/help              this list
/clear             forget the conversation, but not the system message
/regen             another answer to the last question
/save FILE         write the conversation to FILE
/load FILE         continue a conversation that /save wrote
/set               the parameters; /set NAME VALUE changes one
/set system TEXT   the system message; without TEXT it is removed
/set stop TEXT...  texts that end an answer, in quotes if they have blanks; none removes them
/exit              leave, as Ctrl-D does
\"\"\"                begins and ends a text of several lines; pasted text may have several anyway
Ctrl-C             stops the answer"""
_LEAVE = "(to leave, type /exit or press Ctrl-D)"
_FENCE = '"""'


class Repl:
    """Reads questions and commands until the user leaves."""

    def __init__(
        self,
        session: ChatSession,
        name: str,
        read: Callable[[str], str] | None = None,
        *,
        timings: bool = False,
    ) -> None:
        """read: prints a prompt and returns a line; raises EOFError and KeyboardInterrupt.
        timings: print the speed of each answer."""
        self._session = session
        self._name = name
        self._timings = timings
        self._read = read if read is not None else _reader(_history())
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: click.echo(_HELP, err=True),
            "/clear": self._clear,
            "/regen": self._regenerate,
            "/save": self._save,
            "/load": self._load,
            "/set": self._set,
        }

    def run(self) -> None:
        click.echo(
            f"{self._name}, {self._session.n_ctx:,} tokens of context; /help lists commands",
            err=True,
        )
        while True:
            try:
                text, fenced = self._question()
            except EOFError:
                return
            except EndedError:
                raise
            except KeyboardInterrupt:
                click.echo(_LEAVE, err=True)
                continue
            command, _, rest = ("", "", "") if fenced else text.partition(" ")
            if command in ("/exit", "/quit", "/bye"):
                return
            try:
                if command in self._commands:
                    self._commands[command](rest.strip())
                elif command.startswith("/") and "/" not in command[1:]:
                    raise PyflowError(f"no command is called {command!r}; /help lists them")
                elif text:
                    self._answer(text)
            except (BrokenPipeError, EndedError):
                raise
            except KeyboardInterrupt:
                click.echo("(stopped)", err=True)
            except Exception as error:  # a failed command must not end the conversation
                print_error(describe(error))

    def _question(self) -> tuple[str, bool]:
        """One line, or the lines between triple quotes; and whether it is the latter."""
        text = self._read("> ")
        if not text.lstrip().startswith(_FENCE):
            return text.strip(), False
        text = text.lstrip()[len(_FENCE) :]
        while _FENCE not in text:
            text += "\n" + self._read(". ")
        return text.partition(_FENCE)[0].strip("\n"), True

    def _answer(self, text: str) -> None:
        with reading_progress() as progress:
            show(self._session.ask(text, progress=progress), timings=self._timings)

    def _regenerate(self, _: str) -> None:
        with reading_progress() as progress:
            show(self._session.regenerate(progress=progress), timings=self._timings)

    def _clear(self, _: str) -> None:
        self._session.clear()
        kept = ", but not the system message" if self._session.system else ""
        click.echo(f"(forgotten{kept})", err=True)

    def _save(self, rest: str) -> None:
        path = _path(rest, "/save")
        self._session.save(path)
        click.echo(f"(saved as {path})", err=True)

    def _load(self, rest: str) -> None:
        self._session.load(_path(rest, "/load"))
        for message in self._session.messages:
            content = printable(message.content, keep="\n\t")
            click.echo(f"{message.role}: {content}", err=True)

    def _set(self, rest: str) -> None:
        session = self._session
        name, _, value = rest.partition(" ")
        name = name.lstrip("-").replace("-", "_")
        name = _SHORT.get(name, name)
        if not name:
            for known in ("n_predict", *_PARAMETERS, "stop", "system"):
                self._tell(known)
            return
        if name == "system":
            session.system = value.strip() or None
        elif name == "stop":
            session.stop = [unescape(text) for text in _words(value, "/set stop")]
        elif name == "n_predict":
            n = _number(name, value, int)
            if n < 1 and n != -1:
                raise PyflowError(f"n_predict: expected 1 or more, or -1 for no limit, found {n}")
            session.n_predict = n
        elif name in _PARAMETERS:
            session.sampling = dataclasses.replace(
                session.sampling, **{name: _number(name, value, _PARAMETERS[name])}
            )
        else:
            names = ", ".join(["system", "stop", "n_predict", *_PARAMETERS])
            raise PyflowError(f"no parameter is called {name!r}; there are {names}")
        self._tell(name)

    def _tell(self, name: str) -> None:
        holder = self._session.sampling if name in _PARAMETERS else self._session
        value = getattr(holder, name)
        if name == "stop":
            value = " ".join(map(repr, value)) or None
        text = "(none)" if value is None else printable(str(value), keep="\n\t")
        click.echo(f"{name} {text}", err=True)


_SHORT = {"temp": "temperature", "n": "n_predict", "predict": "n_predict"}
_PARAMETERS = {**NUMBERS, "seed": int}


def _number(name: str, value: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise PyflowError(f"{name}: expected a number, found {value!r}") from None


def _words(rest: str, command: str) -> list[str]:
    try:
        return [word for word in shlex.split(rest) if word]
    except ValueError as error:
        raise PyflowError(f"{command}: {error}: found {rest!r}") from None


def _path(rest: str, command: str) -> Path:
    words = _words(rest, command)
    if len(words) != 1:
        raise PyflowError(f"{command}: expected one file name, found {rest!r}")
    try:
        return Path(words[0]).expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise PyflowError(f"{command}: {rest}: {error}") from None


def _plain_line(prompt: str) -> str:
    click.echo(prompt, nl=False, err=not sys.stdout.isatty())
    return input()


def _history() -> History:
    """Earlier lines, kept in the user's state folder if it is writable."""
    folder = Path(platformdirs.user_state_dir("pyflow"))
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "chat_history"
        path.touch(mode=0o600)
    except OSError as error:
        click.echo(f"({folder}: {error.strerror}; what you type is not kept)", err=True)
        return InMemoryHistory()
    return FileHistory(path)


def _reader(history: History) -> Callable[[str], str]:
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return _plain_line  # no cursor to move, and no colours
    names = ["/help", "/clear", "/regen", "/save", "/load", "/set", "/exit"]
    prompt: PromptSession[str] = PromptSession(
        history=history,
        complete_style=CompleteStyle.READLINE_LIKE,  # a menu would reserve lines below
        # If standard output is redirected, only answers go there.
        output=create_output(None if sys.stdout.isatty() else sys.stderr),
        completer=WordCompleter(names, sentence=True),
        complete_while_typing=False,
    )
    return prompt.prompt
