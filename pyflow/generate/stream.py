"""Streams: an iterator over a batch of requests that are all known at the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence

from pyflow.batch.batch import Batch, Event, TextModel
from pyflow.batch.completion import Chunk, Completion
from pyflow.batch.request import Request
from pyflow.batch.runner import Runner
from pyflow.closing import Closing
from pyflow.engine.context import Progress
from pyflow.errors import CancelledError, PyflowError


class Stream(Closing):
    """Chunks as their tokens are drawn, of several requests in turn. One thread at a time.

    Also a context manager: leaving it ends what is unfinished and frees the runner.
    """

    def __init__(
        self,
        runner: Runner,
        model: TextModel,
        requests: Sequence[Request],
        *,
        owned: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """owned: the runner is closed at the end."""
        self._runner = runner
        self._owned = owned
        self._requests = requests
        self._cancelled = False
        self._batch = Batch(runner, model, progress)
        for request in requests:
            self._batch.add(request)
        self._done: dict[int, Completion] = {}
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def read(self) -> list[Completion]:
        """Reads the stream to its end; its completions."""
        with self:
            for _ in self:
                pass
        return self.completions

    @property
    def completions(self) -> list[Completion]:
        """One per request, complete once the stream has ended or has been closed."""
        if len(self._done) < len(self._requests):
            raise PyflowError("the stream has not ended: read it to its end, or close it")
        return [self._done[number] for number in range(len(self._requests))]

    @property
    def completion(self) -> Completion:
        """Of the only request."""
        (only,) = self.completions
        return only

    def cancel(self) -> None:
        """Ends the stream soon, keeping its text; safe in signal handlers and other threads."""
        self._cancelled = True
        self._batch.interrupt()

    def close(self) -> None:
        """Ends the stream now; idempotent."""
        self._chunks.close()
        self._end()

    def _run(self) -> Generator[Chunk, None, None]:
        try:
            while len(self._done) < len(self._requests):
                if self._cancelled:
                    raise CancelledError("stopped")
                yield from self._taken(self._batch.step())
        except CancelledError:
            yield from self._taken(self._cancel_all())
        finally:
            self._end()

    def _taken(self, events: Sequence[Event]) -> Iterator[Chunk]:
        """Chunks of events. Raises what a request has ended by."""
        for event in events:
            if event.completion is not None:
                self._done[event.number] = event.completion
            if event.error is not None:
                raise event.error
        for event in events:
            if event.chunk is not None:
                yield event.chunk

    def _cancel_all(self) -> list[Event]:
        for number in range(len(self._requests)):
            self._batch.cancel(number)
        return self._batch.step()

    def _end(self) -> None:
        deque(self._taken(self._cancel_all()), maxlen=0)
        self._batch.close()
        if self._owned:
            self._runner.close()
