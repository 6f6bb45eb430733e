"""Answers from a pipeline, as `generate.Stream` gives them from one place."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, cast

from pyflow.closing import Closing
from pyflow.cluster.run.runner import PipelineRunner, Span
from pyflow.errors import CancelledError
from pyflow.generate.answer import Answer
from pyflow.generate.completion import Chunk, Completion
from pyflow.generate.conversation import Question
from pyflow.speculate.stats import PipelineStats

if TYPE_CHECKING:
    from pyflow.engine.context import Progress
    from pyflow.tokenizer import Tokenizer


class PipelinedStream(Closing):
    """Chunks as their tokens become certain, of one prompt after the other. One thread at a time.

    Also a context manager: leaving it ends what is unfinished. Then the pipeline is free for the
    next stream, and nothing is on its way.
    """

    def __init__(
        self,
        runner: PipelineRunner,
        tokenizer: Tokenizer,
        questions: Sequence[Question],
        *,
        load_ms: float,
        reuse: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """reuse: what the stages hold of a text is not computed again."""
        self._runner = runner
        self._reuse = reuse
        self._progress = progress
        self._stops = frozenset(tokenizer.stop_ids)
        self._cancelled = False
        self._all = [
            (question, _answer(tokenizer, i, question, load_ms), PipelineStats())
            for i, question in enumerate(questions)
        ]
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    @property
    def completions(self) -> list[Completion]:
        """One per prompt, complete once the stream has ended or has been closed."""
        return [answer.completion(pipeline=stats) for _, answer, stats in self._all]

    @property
    def completion(self) -> Completion:
        """Of the only prompt."""
        (only,) = self.completions
        return only

    def cancel(self) -> None:
        """Ends the stream soon, with what there is; safe in signal handlers and other threads."""
        self._cancelled = True
        self._runner.cancel(self)

    def close(self) -> None:
        """Ends the stream now; idempotent."""
        self._chunks.close()
        self._end()

    def _run(self) -> Generator[Chunk, None, None]:
        self._runner.take(self)
        try:
            for question, answer, stats in self._all:
                try:
                    if self._cancelled:
                        return
                    yield from self._write(question, answer, stats)
                except CancelledError:
                    rest = answer.end("cancelled")
                    if rest:
                        yield Chunk(rest, None, answer.number, None)
                    return
        finally:
            self._end()

    def _write(self, question: Question, answer: Answer, stats: PipelineStats) -> Iterator[Chunk]:
        """One answer. The context being full, it may go on after a shorter text, as a new job."""
        runner, view = self._runner, question.view
        n_dropped = view.n_dropped
        if not self._reuse:
            runner.forget()
        answer.start()

        def begun(n_past: int, n_again: int) -> None:
            if not answer.n_drawn:
                answer.n_past = n_past
            if answer.n_drawn == answer.n_again:
                answer.n_again += n_again

        while not answer.has_ended:
            n_left = question.n_predict - answer.n_drawn if question.n_predict > 0 else runner.n_ctx
            span = Span(
                tokens=[*view.tokens, *answer.tokens],
                n_predict=n_left,
                sampling=question.sampling,
                stream=view.stream,
                n_dropped=n_dropped,
                stops=self._stops,
            )
            n_dropped = 0
            with closing(runner.write(span, stats, begun, self._progress)) as written:
                for token in chain.from_iterable(written):
                    chunk = answer.take(token, time.monotonic())
                    is_full = len(view.tokens) + len(answer.tokens) > runner.n_ctx
                    if is_full and not answer.has_ended:
                        shorter = question.make_room(answer.tokens)
                        if shorter is None:
                            chunk = chunk._replace(text=chunk.text + answer.end("context"))
                        else:
                            view, n_dropped = shorter, shorter.n_dropped
                    yield chunk
                    if answer.reason == "stop":
                        break  # of which the pipeline knows nothing

    def _end(self) -> None:
        for _, answer, _ in self._all:
            answer.end("cancelled")
        self._runner.leave(self)


def _answer(tokenizer: Tokenizer, number: int, question: Question, load_ms: float) -> Answer:
    return Answer(
        tokenizer,
        question.view.tokens,
        number=number,
        n_predict=question.n_predict,
        stop=question.stop,
        seed=cast(int, question.sampling.seed),
        load_ms=load_ms,
    )
