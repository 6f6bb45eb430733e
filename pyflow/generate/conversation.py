"""A text that grows over several answers: what is in the cache is not computed again."""

from __future__ import annotations

from typing import TypedDict

from pyflow.closing import Closing
from pyflow.engine.context import CacheType, Progress
from pyflow.generate.runner import Runner
from pyflow.generate.stream import Request, Stream, TextModel
from pyflow.speculate import Speculator


class CacheOptions(TypedDict, total=False):
    """Of the cache behind a conversation."""

    n_ctx: int | None
    """Tokens that it holds; None is 4096 or the model's limit, whichever is less."""
    cache_type: CacheType
    speculator: Speculator | None
    """Drafts, for answers sooner; it is the caller's."""


class Conversation(Closing):
    """The answers of one conversation. One thread, one answer at a time."""

    def __init__(self, runner: Runner, model: TextModel, *, owned: bool = True) -> None:
        """owned: the runner is closed with this."""
        self._runner = runner
        self._model = model
        self._owned = owned
        self._open: Stream | None = None

    @property
    def n_ctx(self) -> int:
        """Tokens that a view and its answer may have together."""
        return self._runner.n_ctx

    def answer(self, request: Request, progress: Progress | None = None) -> Stream:
        """The answer to a request. Ends the answer before it, if that goes on."""
        self._end()
        stream = Stream(self._runner, self._model, [request], reuse=True, progress=progress)
        self._open = stream
        return stream

    def close(self) -> None:
        """Ends the open answer and frees the cache; idempotent."""
        self._end()
        if self._owned:
            self._runner.close()

    def _end(self) -> None:
        if self._open is not None:
            self._open.close()
