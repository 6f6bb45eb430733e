"""Paired runs: each speculation method right before or after plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflow.errors import PyflowError
from pyflow.generate import Completion, stream
from pyflow.speculate import SpeculationStats, Speculator

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.model import Model
    from pyflow.sampling import SamplingParams

PLAIN = -1
# Cells for a tree at the end of a text, beyond the method's n_max: the first trees of a small
# Lookahead window are larger.
_SPARE_CELLS = 32


class DifferenceError(PyflowError):
    """Speculation gave other tokens than plain decoding."""


class InterruptedRunError(Exception):
    """The measurement was cancelled; the current run does not count."""


@dataclass(frozen=True, slots=True)
class Group:
    """Questions decoded together."""

    task: str
    ids: list[str]
    prompts: list[list[int]]


@dataclass(frozen=True, slots=True)
class Setting:
    """The number of sequences decoded together, and the most tokens of a prompt."""

    n_batch: int
    prompt_len: int


@dataclass(frozen=True, slots=True)
class Run:
    """One call of generate for a group."""

    tokens: list[list[int]]
    prompt_ms: float
    """From the start to the first tokens, which all sequences draw in one step."""
    decode_n: int
    """Tokens of all sequences after the first ones."""
    decode_ms: float
    """From the first tokens to the last one of the longest sequence."""
    stats: SpeculationStats | None

    @classmethod
    def of(cls, done: Sequence[Completion]) -> Run:
        parts = [c.speculation for c in done if c.speculation is not None]
        return cls(
            tokens=[c.tokens for c in done],
            prompt_ms=max(c.timings.prompt_ms for c in done),
            decode_n=sum(c.timings.predicted_n - 1 for c in done),
            decode_ms=max(c.timings.predicted_ms for c in done),
            stats=SpeculationStats.total(parts) if parts else None,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """A group decoded by a method, and right before or after that without speculation."""

    setting: Setting
    group: Group
    method: str
    run: Run
    plain: Run
    plain_first: bool

    @property
    def ratio(self) -> float | None:
        """Times faster than plain decoding; None for answers of a single token."""
        if self.run.decode_ms <= 0 or self.plain.decode_ms <= 0:
            return None
        return self.plain.decode_ms / self.run.decode_ms

    def as_dict(self) -> dict[str, Any]:
        run, plain = self.run, self.plain
        return {
            "task": self.group.task,
            "ids": self.group.ids,
            "batch": self.setting.n_batch,
            "prompt_len": self.setting.prompt_len,
            "method": self.method,
            "plain_first": self.plain_first,
            "prompt_n": [len(prompt) for prompt in self.group.prompts],
            "decode_n": run.decode_n,
            "prompt_ms": run.prompt_ms,
            "plain_prompt_ms": plain.prompt_ms,
            "decode_ms": run.decode_ms,
            "plain_decode_ms": plain.decode_ms,
            "ratio": self.ratio,
            "speculation": run.stats.as_dict() if run.stats else None,
        }


def blocks(n_methods: int, turn: int) -> list[list[int]]:
    """The order of a turn's runs: methods by number, and PLAIN next to each of them.

    Of three methods: 0 plain 1, 2 plain. In every other turn all of that backwards, so that a
    machine that slows down does so for both sides alike.
    """
    order = [
        [first, PLAIN, *range(first + 1, min(first + 2, n_methods))]
        for first in range(0, n_methods, 2)
    ]
    return order if turn % 2 == 0 else [block[::-1] for block in reversed(order)]


class Pairs:
    """Runs groups of one setting by several methods. Keeps one context for all."""

    def __init__(
        self,
        model: Model,
        methods: Mapping[str, Speculator | None],
        *,
        n_predict: int,
        sampling: SamplingParams,
    ) -> None:
        """methods: by name, None for plain decoding once more, which tells the noise."""
        self._model = model
        self._names = list(methods)
        self._speculators = [*methods.values(), None]  # the last is number PLAIN
        self._n_predict = n_predict
        self._sampling = sampling
        self._running: Any = None
        self._cancelled = False

    def cancel(self) -> None:
        """Ends `measure` soon, with InterruptedRunError; safe in signal handlers."""
        self._cancelled = True
        if self._running is not None:
            self._running.cancel()

    def measure(
        self, setting: Setting, groups: Sequence[Group], warm_up: Group
    ) -> Iterator[list[Sample]]:
        """For each group a sample of every method, after one group that is not counted.

        DifferenceError where a method's tokens are not those of plain decoding.
        """
        with self._context(setting, [*groups, warm_up]) as context:
            for turn, group in enumerate([warm_up, *groups], start=-1):
                samples = []
                for block in blocks(len(self._names), turn):
                    runs = {number: self._run(context, group, number) for number in block}
                    for number in block:
                        if number != PLAIN:
                            sample = Sample(
                                setting=setting,
                                group=group,
                                method=self._names[number],
                                run=runs[number],
                                plain=runs[PLAIN],
                                plain_first=block.index(PLAIN) < block.index(number),
                            )
                            self._check(sample)
                            samples.append(sample)
                if turn >= 0:
                    yield sorted(samples, key=lambda s: self._names.index(s.method))

    def _context(self, setting: Setting, groups: Sequence[Group]) -> Context:
        longest = max(len(prompt) for group in groups for prompt in group.prompts)
        spare = _SPARE_CELLS + max((s.n_max for s in self._speculators if s), default=0)
        n_ctx = min(longest + self._n_predict + spare, self._model.spec.n_ctx_train)
        return self._model.context(n_ctx * setting.n_batch, n_seq_max=setting.n_batch)

    def _run(self, context: Context, group: Group, number: int) -> Run:
        with stream(
            context,
            group.prompts,
            n_predict=self._n_predict,
            sampling=self._sampling,
            speculator=self._speculators[number],
        ) as chunks:
            self._running = chunks
            if self._cancelled:
                raise InterruptedRunError
            for _ in chunks:
                pass
        self._running = None
        if self._cancelled:
            raise InterruptedRunError
        return Run.of(chunks.completions)

    def _check(self, sample: Sample) -> None:
        pairs = zip(sample.group.ids, sample.run.tokens, sample.plain.tokens, strict=True)
        for name, found, expected in pairs:
            if found != expected:
                at = next(
                    (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
                    min(len(found), len(expected)),
                )
                raise DifferenceError(
                    f"{sample.method}: {sample.group.task}, question {name}: token {at} of the "
                    f"answer: expected {self._token(expected, at)}, as without speculation, found "
                    f"{self._token(found, at)}; this is a fault of pyflow"
                )

    def _token(self, tokens: Sequence[int], at: int) -> str:
        if at >= len(tokens):
            return "the end"
        return f"{tokens[at]} ({self._model.tokenizer.token_bytes(tokens[at])!r})"
