"""A conversation with a model, without the terminal around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack, cast

import msgspec

from pyflow.batch.request import Request, View
from pyflow.chat import ChatTemplate
from pyflow.closing import Closing
from pyflow.engine.cached_text import still_drawn
from pyflow.engine.context import Progress
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.origins import cell_names, tokens_of
from pyflow.engine.session_file import SessionFile
from pyflow.engine.sources import reads_sources
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.formats.replacing import replacing
from pyflow.formats.side_files import other_kind
from pyflow.generate import Chunk, Completion
from pyflow.generate.any_model import AnyModel, CacheOptions, check_fits, stop_texts
from pyflow.generate.stream import Stream
from pyflow.sampling import SamplingParams

Role = Literal["system", "user", "assistant"]
_FORMAT = "pyflow-chat-1"
_MAX_FILE = 1 << 26  # bytes; a conversation of this size fits no context


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Role
    content: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    model: str
    messages: list[ChatMessage]


class _Resumed(msgspec.Struct, forbid_unknown_fields=True):
    """What a session file keeps of a conversation beside its cells."""

    messages: list[ChatMessage]
    n_forgotten: int
    noise_stream: int
    seed: int
    names: list[int] = []
    """Of the text, its last tokens included, which have no cells."""


class ChatOptions(CacheOptions, total=False):
    """Further options of a conversation."""

    template: ChatTemplate | None
    """In place of the model's own."""
    session: str | Path | None
    """A file with the conversation to go on with, cells included; `close` writes it. What is there
    and cannot be used is a SessionWarning."""


def chat_template(model: AnyModel) -> ChatTemplate:
    """The model's chat template; UnsupportedError, with advice, without one."""
    if model.chat_template is None and model.spec.source is not None:
        raise UnsupportedError(reads_sources(model.spec))
    if model.chat_template is None:
        raise UnsupportedError(
            f"{model.name}: has no chat template: it continues text and was not trained to chat; "
            "use 'pyflow generate --raw', or take an instruct model"
        )
    return model.chat_template


class ChatSession(Closing):
    """Questions and answers in one context. Also a context manager that frees it. One thread.

    What the model has read stays in its cache: a turn computes only what is new. When the context
    is full, the model forgets the oldest turns, but not the system message: their cells are removed
    and the later ones moved up, which rounds keys again, so that a conversation past its context is
    not what a fresh one over the same messages would be to the last bit.
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        system: str | None = None,
        sampling: SamplingParams | None = None,
        n_predict: int | None = None,
        stop: str | Sequence[str] = (),
        notice: Callable[[str], None] | None = None,
        **options: Unpack[ChatOptions],
    ) -> None:
        """sampling, n_predict: None is what the model's files say. A speculator may serve other
        sessions too. notice: called with a sentence, once each, when the model begins to forget
        turns, and when its template has no place for the system message, which stands before the
        first question then; without `notice` this is a GenerationWarning.

        UnsupportedError: the model has no chat template.
        """
        self._model = model
        self._template = options.pop("template", None) or chat_template(model)
        self._file: SessionFile | None = None
        if (path := options.pop("session", None)) is not None:
            if not isinstance(model, ModelFiles):
                raise PyflowError("session: a pipeline's cells stay on its ranks; leave it out")
            self._file = SessionFile(path, model, options.get("cache_type", "f16"))
        self._sampling = sampling or model.defaults.sampling
        self._notice = notice
        self._noticed: set[str] = set()
        self._messages: list[ChatMessage] = []
        self._n_forgotten = 0  # messages after the system message
        self._names: list[int] = []  # of the text of the last answer (engine/origins.py)
        self._stream = 0
        self._open: Turn | None = None
        with ExitStack() as stack:
            if self._file is not None:
                stack.enter_context(self._file)
            self._run = model.conversation(**cast("CacheOptions", options), session=self._file)
            self._resume()
            stack.pop_all()  # the runner closes the session
        self._sampling = self._sampling.seeded()
        self.n_predict = model.defaults.n_predict if n_predict is None else n_predict
        self.stop = stop
        if system is not None:
            self.system = system

    @property
    def messages(self) -> list[ChatMessage]:
        """The whole conversation, what the model has forgotten included."""
        return list(self._messages)

    @property
    def n_ctx(self) -> int:
        return self._run.runner.n_ctx

    @property
    def sampling(self) -> SamplingParams:
        """How the next answer is drawn; new parameters without a seed keep the one in use."""
        return self._sampling

    @sampling.setter
    def sampling(self, params: SamplingParams) -> None:
        self._sampling = (
            replace(params, seed=self._sampling.seed) if params.seed is None else params
        )

    @property
    def system(self) -> str | None:
        """The system message, if there is one."""
        return self._messages[0].content if self._messages[: self._n_system] else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._messages[: self._n_system] = [ChatMessage("system", text)] if text else []

    def ask(self, text: str, *, progress: Progress | None = None) -> Turn:
        """The answer to a question, as it comes. The conversation grows once it has ended.

        PyflowError: an empty question, or one that does not fit into the context by itself.
        """
        self._end_open_turn()
        if not text.strip():
            raise PyflowError("the question is empty; type some text")
        return self._turn([*self._messages, ChatMessage("user", text)], progress)

    def regenerate(self, *, progress: Progress | None = None) -> Turn:
        """Replaces the last answer by another one, drawn with new noise."""
        self._end_open_turn()
        if not self._messages or self._messages[-1].role != "assistant":
            raise PyflowError("there is no answer to replace; ask something first")
        self._stream += 1
        return self._turn(self._messages[:-1], progress)

    def clear(self) -> None:
        """Forgets everything but the system message and the parameters."""
        self._end_open_turn()
        del self._messages[self._n_system :]
        self._n_forgotten = 0
        self._stream += 1

    def save(self, path: str | Path) -> None:
        """Writes the conversation as JSON, whole or not at all."""
        target = Path(path)
        if target.exists():
            _read_conversation(target)  # nothing else is replaced
        saved = _File(format=_FORMAT, model=self._model.name, messages=self._messages)
        text = msgspec.json.format(msgspec.json.encode(saved), indent=2)
        try:
            with replacing(target) as file:
                file.write(text + b"\n")
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            reason = getattr(error, "strerror", None) or error
            raise PyflowError(f"{target}: cannot be written: {reason}") from None

    def load(self, path: str | Path) -> None:
        """Takes over a conversation that `save` wrote, its system message included."""
        messages = _read_conversation(Path(path))
        self._end_open_turn()
        self._messages = messages
        self._n_forgotten = 0
        self._names = []  # its answers are given, whoever has drawn them
        self._stream += 1

    def close(self) -> None:
        """Writes the session, if there is one, and frees the context; idempotent."""
        self._end_open_turn()
        if self._file is not None:
            kept = _Resumed(
                messages=self._messages,
                n_forgotten=self._n_forgotten,
                noise_stream=self._stream,
                seed=cast(int, self._sampling.seed),
                names=self._names,
            )
            self._file.notes = {"chat": msgspec.json.encode(kept).decode()}
        if self._run.owned:
            self._run.runner.close()

    def _resume(self) -> None:
        """Takes over the conversation of the session file, if it holds one."""
        if self._file is None or (notes := self._file.notes.get("chat")) is None:
            return
        try:
            kept = msgspec.json.decode(notes, type=_Resumed)
        except msgspec.DecodeError as error:
            raise PyflowError(f"{self._file.path}: is not a saved conversation: {error}") from None
        self._messages, self._n_forgotten = kept.messages, kept.n_forgotten
        self._stream = kept.noise_stream
        names = self._file.names
        is_longer = tokens_of(kept.names[: len(names)]) == tokens_of(names)
        self._names = [*names, *(kept.names[len(names) :] if is_longer else ())]
        if self._sampling.seed is None:
            self._sampling = replace(self._sampling, seed=kept.seed)

    @property
    def _n_system(self) -> int:
        return int(bool(self._messages) and self._messages[0].role == "system")

    def _end_open_turn(self) -> None:
        if self._open is not None:
            self._open.close()

    def _turn(self, messages: list[ChatMessage], progress: Progress | None) -> Turn:
        before = self._n_forgotten
        ids = self._encode(messages)
        n_whole = len(ids)
        if n_whole >= self.n_ctx:
            ids = self._forget(messages, 0) or ids
        try:
            check_fits(len(ids), self.n_ctx, self._model.spec.n_ctx_train)
        except PyflowError:
            self._n_forgotten = before
            raise
        n_dropped = n_whole - len(ids)
        seen = View(ids, self._stream, n_dropped, still_drawn(self._names, ids, n_dropped))

        def make_room(drawn: list[int]) -> View | None:
            nonlocal seen
            shorter = self._forget(messages, len(drawn))
            if shorter is None or len(shorter) + len(drawn) >= self.n_ctx:
                return None
            n_dropped = len(seen.tokens) - len(shorter)
            names = cell_names(seen.tokens, seen.drawn)
            drawn_before = still_drawn(names, shorter, n_dropped)
            seen = View(shorter, self._stream, n_dropped, drawn_before)
            return seen

        def finish(done: Completion) -> None:
            self._open = None
            self._names = [
                *cell_names(seen.tokens, seen.drawn),
                *cell_names(done.tokens, ((0, len(done.tokens)),)),
            ]
            if done.timings.predicted_n > 0:
                self._messages = [*messages, ChatMessage("assistant", done.text)]

        request = Request(
            view=seen,
            sampling=self._sampling,
            limit=self.n_ctx,
            n_predict=self.n_predict,
            stop=stop_texts(self.stop),
            make_room=make_room,
            reuse=True,
        )
        runner = self._run.runner
        stream = Stream(runner, self._model, [request], progress=progress)
        self._open = Turn(stream, finish)
        return self._open

    def _encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        n_system = int(messages[0].role == "system")
        seen = [*messages[:n_system], *messages[n_system + self._n_forgotten :]]
        return self._template.encode(
            [msgspec.structs.asdict(message) for message in seen],
            tell=None if self._notice is None else self._tell,
        )

    def _tell(self, text: str) -> None:
        """Calls `notice`, once for each text."""
        if self._notice is not None and text not in self._noticed:
            self._noticed.add(text)
            self._notice(text)

    def _forget(self, messages: list[ChatMessage], n_answer: int) -> list[int] | None:
        """Drops the oldest turns until a quarter of the context is free, or only the last is left.

        Returns the tokens of what the model still sees, None if there was nothing to drop.
        """
        start = int(messages[0].role == "system")
        # A turn begins at a message of the user.
        begins = [i - start for i in range(start, len(messages)) if messages[i].role == "user"]
        ids = None
        for begin in begins:
            if begin <= self._n_forgotten:
                continue
            self._n_forgotten = begin
            # Positions are drawn for a second time: with the old noise, answers would repeat.
            self._stream += 1
            ids = self._encode(messages)
            if len(ids) + n_answer <= self.n_ctx * 3 // 4:
                break
        if ids is not None:
            self._tell(
                f"the context of {self.n_ctx:,} tokens is full: from here on the model forgets the "
                "oldest turns"
            )
        return ids


def _read_conversation(path: Path) -> list[ChatMessage]:
    """The messages of a file that `save` wrote; PyflowError for any other."""
    try:
        if (kind := other_kind(path)) is not None:  # a pipe would block
            raise PyflowError(f"{path}: expected a conversation, found {kind}")
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
        if len(raw) > _MAX_FILE:
            raise PyflowError(f"{path}: expected a conversation of at most {_MAX_FILE:,} bytes")
        saved = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PyflowError(f"{path}: is not a saved conversation: {error}") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise PyflowError(f"{path}: cannot be read: {reason}") from None
    if saved.format != _FORMAT:
        raise PyflowError(f"{path}: format: expected {_FORMAT!r}, found {saved.format!r}")
    if any(message.role == "system" for message in saved.messages[1:]):
        raise PyflowError(f"{path}: a system message stands after others; move it to the front")
    return saved.messages


class Turn(Closing):
    """An answer as it comes: an iterator of chunks. Leaving it as a context manager ends it."""

    def __init__(self, stream: Stream, finish: Callable[[Completion], None]) -> None:
        self._stream = stream
        self._finish: Callable[[Completion], None] | None = finish

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return next(self._stream)
        except BaseException:
            self.close()
            raise

    @property
    def completion(self) -> Completion:
        """The whole answer, once it has ended."""
        return self._stream.completion

    def cancel(self) -> None:
        """Ends the answer soon and keeps its text so far. Safe in signal handlers."""
        self._stream.cancel()

    def close(self) -> None:
        """Ends the answer now; idempotent."""
        self._stream.close()
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish(self._stream.completion)
