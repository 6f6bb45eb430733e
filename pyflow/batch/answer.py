"""From drawn tokens to text: an answer on its way."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyflow.batch.completion import Chunk, Completion, StopReason, Timings, TokenLogprobs
from pyflow.errors import PyflowError
from pyflow.speculate.stats import PipelineStats, SpeculationStats
from pyflow.tokenizer import DrawnTokens


class Answer:
    """What has been drawn after one prompt; ends by itself where model, text or length say so."""

    def __init__(
        self,
        tokenizer: DrawnTokens,
        prompt: Sequence[int],
        *,
        number: int = 0,
        n_predict: int = -1,
        stop: Sequence[str] = (),
        seed: int,
        load_ms: float,
    ) -> None:
        """number: of the prompt among several."""
        self.number = number
        self.reason: StopReason | None = None
        """Why it has ended; None: it has not."""
        self.tokens: list[int] = []
        """Those drawn, without the one that ends the answer."""
        self.n_drawn = 0
        self._n_past = 0
        self._n_replayed = 0
        self._prompt = prompt
        self._n_predict = n_predict
        self._seed = seed
        self._load_ms = load_ms
        self._stop_ids = tokenizer.stop_ids
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()
        self._stop = stop
        self._scanner = StopScanner(stop)
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self._started = self._first = self._last = 0.0

    @property
    def has_ended(self) -> bool:
        return self.reason is not None

    def start(self) -> None:
        """The prompt begins to be read."""
        if self.n_drawn == 0:
            self._started = time.monotonic()

    def begun(self, n_past: int, n_replayed: int) -> None:
        """n_past: tokens of the text that need no computation. n_replayed: leading tokens replayed
        after a restart; counted as prompt in the timings."""
        if self.n_drawn == 0:
            self._n_past = n_past
        if self.n_drawn == self._n_replayed:
            self._n_replayed += n_replayed

    def take(self, token: int, now: float, logprobs: TokenLogprobs | None = None) -> Chunk:
        """Goes on by a token that was drawn at this time of the monotonic clock."""
        self.n_drawn += 1
        self._last = now
        if self.n_drawn <= self._n_replayed + 1:
            self._first = now
        if logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs.append(logprobs)
        if token in self._stop_ids:
            return Chunk(self.end("eos"), token, self.number, logprobs)
        self.tokens.append(token)
        text, stopped = self._scanner.feed(self._detokenizer.feed(token))
        if text:
            self._text.append(text)
        if stopped:
            self.reason = "stop"
        elif self.n_drawn == self._n_predict:
            text += self.end("length")
        return Chunk(text, token, self.number, logprobs)

    def replace(self, token: int) -> None:
        """The last token was another one; text that was passed on stays passed on."""
        self.tokens[-1] = token
        self._logprobs = None if self._logprobs is None else self._logprobs[:-1]
        self._detokenizer = self._tokenizer.detokenizer()
        self._scanner = StopScanner(self._stop)
        self._text = [self._scanner.feed(self._detokenizer.feed(t))[0] for t in self.tokens]

    def end(self, reason: StopReason) -> str:
        """Ends for this reason unless it has ended; the text that was held back."""
        if self.reason is not None:
            return ""
        text, stopped = self._scanner.feed(self._detokenizer.flush())
        self.reason = "stop" if stopped else reason
        text += self._scanner.flush()
        self._text.append(text)
        return text

    def completion(
        self,
        stats: SpeculationStats | PipelineStats | None = None,
        prompt_logprobs: Sequence[TokenLogprobs] | None = None,
        pooled: NDArray[np.float32] | None = None,
    ) -> Completion:
        """PyflowError while it goes on."""
        if self.reason is None:
            raise PyflowError("the stream has not ended: read it to its end, or close it")
        has_read = self.n_drawn > 0 or self.reason == "length"
        return Completion(
            text="".join(self._text),
            prompt_tokens=list(self._prompt),
            tokens=self.tokens,
            stop_reason=self.reason,
            timings=Timings(
                load_ms=self._load_ms,
                prompt_n=len(self._prompt) - self._n_past + self._n_replayed if has_read else 0,
                prompt_ms=1e3 * max(0.0, self._first - self._started),
                predicted_n=self.n_drawn - self._n_replayed,
                predicted_ms=1e3 * (self._last - self._first),
            ),
            seed=self._seed,
            logprobs=self._logprobs,
            speculation=stats if isinstance(stats, SpeculationStats) else None,
            pipeline=stats if isinstance(stats, PipelineStats) else None,
            prompt_logprobs=prompt_logprobs,
            pooled=pooled,
        )


class StopScanner:
    """Passes text through up to the first stop text, and no part of that.

    Text that may be the beginning of a stop text waits until it is known not to be.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is certain, and whether a stop text has come; nothing may follow then."""
        if not self._stops:
            return text, False
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """The text still waiting, once it is certain that nothing follows."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that begins the stop text, short of all of it."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-n:]):
            return n
    return 0
