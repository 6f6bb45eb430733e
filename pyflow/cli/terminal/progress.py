"""Answers as they come, progress bars, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from pyflow.generate import Completion
    from pyflow.generate.session import Turn

# Longer prompts show a progress bar.
_LONG_PROMPT = 1024
_ENDS = {"length": "ended by -n", "context": "the context is full", "cancelled": "stopped"}
_REPEATED, _LONGEST_PIECE = 192, 48  # tokens


@contextlib.contextmanager
def on_interrupt(
    cancel: Callable[[], None], others: Sequence[signal.Signals] = ()
) -> Iterator[list[int]]:
    """The first Ctrl-C calls `cancel` instead of raising KeyboardInterrupt; a second one raises.

    others: signals that call `cancel` however often they come, unless they are ignored. Yields the
    numbers of all that came.
    """
    came: list[int] = []
    previous = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, *others)
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    }

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        came.append(signum)
        if signum == signal.SIGINT:
            signal.signal(signal.SIGINT, previous[signal.SIGINT])
        cancel()

    for number in previous:
        signal.signal(number, handle)
    try:
        yield came
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Bar:
    """A progress bar on standard error, removed at the end."""

    def __init__(self, what: str, least: int) -> None:
        self._what = what
        self._least = least
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if total < self._least:
                return
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self._what, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextlib.contextmanager
def progress(what: str, *, least: int = 0) -> Iterator[Callable[[int, int], None]]:
    """A function to call with (done, total). It shows nothing for totals below `least`, or if
    standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    bar = _Bar(what, least)
    try:
        yield bar
    finally:
        bar.stop()


@contextlib.contextmanager
def stages() -> Iterator[Callable[[str, int, int, str], None]]:
    """A function to call with (what, done, total, note), for work of several parts, one after the
    other. Shows a bar for each part, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total, _note: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    more = (TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)
    with Progress(*columns, *more, console=console, transient=True) as bars:
        known: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int, note: str) -> None:
            if what not in known:
                known[what] = bars.add_task(what, total=total, note=note)
            bars.update(known[what], completed=done, total=total, note=note)

        yield tell


def reading_progress() -> contextlib.AbstractContextManager[Callable[[int, int], None]]:
    """Progress of reading a long prompt."""
    return progress("reading the prompt", least=_LONG_PROMPT)


def show(turn: Turn, *, timings: bool = False) -> bool:
    """Prints an answer as it comes; Ctrl-C ends it early, and so does going round in circles.

    timings: print its speed too. Returns whether Ctrl-C ended it.
    """
    tokens: list[int] = []
    circles = False
    with turn, on_interrupt(turn.cancel):
        for chunk in turn:
            click.echo(chunk.text, nl=False)
            if chunk.token is not None:
                tokens.append(chunk.token)
            if not circles and goes_in_circles(tokens):
                circles = True
                turn.cancel()
    done = turn.completion
    if not done.text.endswith("\n"):
        click.echo()
    if circles:
        click.echo("(stopped: the answer repeats itself)", err=True)
    elif done.stop_reason in _ENDS:
        click.echo(f"({_ENDS[done.stop_reason]})", err=True)
    for line in (speed_line(done), done.speculation, done.pipeline) if timings else ():
        if line is not None:
            click.echo(f"[{line}]", err=True)
    return done.stop_reason == "cancelled" and not circles


def counted(n: int, per_second: float = 0) -> str:
    """Tokens, and their speed if there is one: the time of a single drawn token is not measured."""
    rate = f", {per_second:.1f}/s" if per_second > 0 else ""
    return f"{n} token{'' if n == 1 else 's'}{rate}"


def speed_line(done: Completion) -> str:
    """Counts and speeds of a turn."""
    t = done.timings
    return (
        f"prompt {counted(t.prompt_n, t.prompt_per_second)}; "
        f"answer {counted(t.predicted_n, t.predicted_per_second)}"
    )


def goes_in_circles(tokens: Sequence[int]) -> bool:
    """Whether an answer has ended in a piece of up to 48 tokens that comes again and again.

    Looked at every 16 tokens: 192 of them must repeat what stands a piece before. Texts that people
    ask for, such as tables and counting, change more often.
    """
    n = len(tokens)
    if n % 16 or n < _REPEATED + _LONGEST_PIECE:
        return False
    tail = tokens[n - _REPEATED :]
    return any(
        tokens[n - _REPEATED - piece : n - piece] == tail for piece in range(1, _LONGEST_PIECE + 1)
    )
