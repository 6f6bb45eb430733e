"""A text that grows over several answers: what of it is in the cache is not computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from pyflow import _core
from pyflow.closing import Closing
from pyflow.engine.cached_text import reusable
from pyflow.engine.defaults import Defaults
from pyflow.generate.completion import Chunk, Completion
from pyflow.generate.stream import Feed, Request, Stream
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from pyflow.chat import ChatTemplate
    from pyflow.engine.context import CacheType, Context, Progress
    from pyflow.specs.model_spec import ModelSpec
    from pyflow.speculate import Speculator
    from pyflow.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class View:
    """What the model is to see: a text, and the stream of noise that goes on from it."""

    tokens: list[int]
    stream: int = 0
    n_dropped: int = 0
    """So many tokens have left the text since the last view, all in one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A text to go on from, and how."""

    view: View
    sampling: SamplingParams
    """With a seed."""
    n_predict: int = -1
    stop: Sequence[str] = ()
    make_room: Callable[[list[int]], View | None] = lambda _: None
    """Called when the context is full, with all tokens drawn: a shorter view, without them, or
    None to end."""


class Answering(Protocol):
    """An answer as it comes, as `Stream` gives one."""

    def __next__(self) -> Chunk: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
    @property
    def completion(self) -> Completion: ...


class Conversation(Protocol):
    """Where the answers of one conversation come from. One thread, one answer at a time."""

    @property
    def n_ctx(self) -> int:
        """Tokens that view and answer may have together."""
        ...

    def answer(self, question: Question, progress: Progress | None = None) -> Answering:
        """The answer to a question. Ends the one before it, if that goes on."""
        ...

    def close(self) -> None:
        """Frees the cache; idempotent."""
        ...


class AnyModel(Protocol):
    """A model that writes, in this process or as a pipeline over several stages."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    @property
    def defaults(self) -> Defaults: ...
    @property
    def n_threads(self) -> int: ...
    def conversation(
        self,
        n_ctx: int | None = None,
        *,
        cache_type: CacheType = "f16",
        speculator: Speculator | None = None,
    ) -> Conversation: ...


class LocalConversation(Closing):
    """A conversation in a context of this process, which is its own."""

    def __init__(self, context: Context, speculator: Speculator | None = None) -> None:
        """speculator: drafts, for answers sooner; it is the caller's, and may serve others too."""
        self._context = context
        self._speculator = speculator
        self._cached: list[int] = []  # the tokens of sequence 0
        self._settle: Callable[[], None] = lambda: None

    @property
    def n_ctx(self) -> int:
        return self._context.n_ctx

    def answer(self, question: Question, progress: Progress | None = None) -> Stream:
        self._settle()
        ids = question.view.tokens
        n_past = self._reuse(ids, question.view.n_dropped)

        def sampler(view: View, text: list[int]) -> _core.Sampler:
            made = question.sampling.sampler(stream=view.stream)
            made.accept_all(text)  # penalties look back on what the model sees
            return made

        def make_room(drawn: list[int]) -> Feed | None:
            nonlocal ids
            view = question.make_room(drawn)
            if view is None:
                return None
            self._cached = [*ids, *drawn[:-1]]
            ids = view.tokens
            text = [*ids, *drawn]
            return Feed(text, self._reuse(text, view.n_dropped), sampler(view, text))

        request = Request(
            tokens=ids,
            sampler=sampler(question.view, ids),
            limit=self.n_ctx,
            n_predict=question.n_predict,
            stop=question.stop,
            n_past=n_past,
            make_room=make_room,
        )
        seed = cast(int, question.sampling.seed)
        stream = Stream(
            self._context, [request], seed=seed, progress=progress, speculator=self._speculator
        )

        def settle() -> None:
            stream.close()
            held = self._context.seq_pos_max(0) + 1
            self._cached = [*ids, *stream.completion.tokens][:held]
            self._settle = lambda: None

        self._settle = settle
        return stream

    def close(self) -> None:
        self._context.close()

    def _reuse(self, target: list[int], n_dropped: int) -> int:
        """Cuts the cache to the longest prefix of the target it can hold; how many tokens that is.

        If the cache holds what follows the tokens that were dropped, it is moved up.
        """
        try:
            return self._cut_and_move(target, n_dropped)
        except BaseException:
            # Ctrl-C can come anywhere; what the cache then holds is not known.
            self._context.clear()
            self._cached = []
            raise

    def _cut_and_move(self, target: list[int], n_dropped: int) -> int:
        context = self._context
        first, same = reusable(self._cached, target, n_dropped if context.shifts else 0)
        if first is not None:
            context.seq_rm(0, first, first + n_dropped)
            context.seq_add(0, first + n_dropped, -1, -n_dropped)
            del self._cached[first : first + n_dropped]
        keep = context.seq_reusable(0, same)
        context.seq_rm(0, keep)
        del self._cached[keep:]
        return keep
