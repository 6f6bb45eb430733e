"""Models that write: their options, and how prompts become a stream."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypedDict, Unpack, cast, overload

import numpy as np

from pyflow.adapters import Choice, KnownAdapters, chosen
from pyflow.arguments import whole, whole_numbers
from pyflow.batch.batch import TextModel
from pyflow.batch.completion import Completion
from pyflow.batch.request import Request, View
from pyflow.batch.runner import Runner
from pyflow.chat import ChatTemplate
from pyflow.constrain import Constraint, Matcher
from pyflow.engine.context import CacheType, Progress
from pyflow.engine.defaults import Defaults
from pyflow.engine.session_file import SessionFile
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.generate.languages import Languages
from pyflow.generate.stream import Stream
from pyflow.sampling import SamplingParams
from pyflow.specs.model_spec import ModelSpec
from pyflow.speculate import Speculator
from pyflow.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int]
"""Text, which gets BOS where the model wants one, or token ids, which are taken as they are."""


class Options(TypedDict, total=False):
    """How to go on from prompts; the same for all of them."""

    n_predict: int
    """Tokens to draw at most; -1 goes on to the end of the answer or context, which is the default
    where the model's files have no other."""
    sampling: SamplingParams
    """The default is what the model's files say. Without a seed, one is drawn; the
    completion has it."""
    stop: str | Sequence[str]
    """The text ends before this, or before the first of these, no part of which comes out."""
    constraint: Constraint | None
    """What each answer is held to, such as Constraint.json_schema(...); see pyflow.constrain."""
    n_ctx: int | None
    """Tokens of a prompt and its answer together; None suits prompt and n_predict."""
    cache_type: CacheType
    """How keys and values are kept: f16, the default, or q8_0."""
    progress: Progress | None
    """Called as progress(done, total) while long prompts are read."""
    speculator: Speculator | None
    """Drafts what the model then verifies, several tokens at a time; the same tokens come out."""
    from_language: str | None
    """Of a source, as the model's vocabulary has it: eng_Latn, en_XX, en."""
    to_language: str | None
    """Of the answer."""
    adapters: Mapping[str, float] | Collection[str]
    """Which adapters of the model apply, by names: all, or by factors. Without it, those of the
    model's own default."""
    session: str | Path | None
    """A file that keeps a single text's cells: what it begins with is not computed again."""


class CacheOptions(TypedDict, total=False):
    """Of the cache behind a conversation."""

    n_ctx: int | None
    """Tokens that it holds; None is 4096 or the model's limit, whichever is less."""
    cache_type: CacheType
    speculator: Speculator | None
    """Drafts, for answers sooner; it is the caller's."""


@dataclass(frozen=True, slots=True)
class Run:
    """A runner, and the positions that each of its texts may take."""

    runner: Runner
    limits: Sequence[int]
    owned: bool = False
    """Whether the runner is closed at the end."""
    reuse: bool = False
    """Whether a text may begin with cells that the runner has."""


class Prompted(TextModel, Protocol):
    """What prompts are checked against."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def defaults(self) -> Defaults: ...
    @property
    def adapters(self) -> KnownAdapters | None: ...
    def matcher(self, constraint: Constraint, /) -> Matcher: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """Prompts as tokens, and how to go on from them."""

    prompts: list[list[int]]
    noise_streams: list[int]
    """One per prompt."""
    n_predict: int
    sampling: SamplingParams
    """With a seed."""
    stop: Sequence[str]
    matchers: Sequence[Matcher | None]
    """One per prompt."""
    progress: Progress | None
    adapters: Choice | None = None
    start: list[int] | None = None
    """The tokens that answers begin with, of a model for which prompts are sources."""

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.prompts]

    def stream(self, model: TextModel, run: Run) -> Stream:
        """Of all prompts; cells that the runner holds of an earlier text are used if it reuses."""
        requests = [
            Request(
                view=View(tokens if self.start is None else [*self.start], noise_stream),
                source=None if self.start is None else tokens,
                sampling=self.sampling,
                limit=limit,
                n_predict=self.n_predict,
                stop=self.stop,
                reuse=run.reuse,
                matcher=matcher,
                adapters=self.adapters,
            )
            for tokens, noise_stream, matcher, limit in zip(
                self.prompts, self.noise_streams, self.matchers, run.limits, strict=True
            )
        ]
        return Stream(run.runner, model, requests, owned=run.owned, progress=self.progress)


class AnyModel(ABC):
    """Writes text. Where its layers are is up to the runner that it gives."""

    path: Path
    spec: ModelSpec
    defaults: Defaults
    n_threads: int
    load_ms: float

    @property
    def adapters(self) -> KnownAdapters | None:
        """Those that are loaded beside the weights, if any are."""
        return None

    @property
    @abstractmethod
    def name(self) -> str: ...
    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...
    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template, or None."""

    def matcher(self, constraint: Constraint) -> Matcher:  # noqa: ARG002
        """What holds a text to a constraint; UnsupportedError where tokens are drawn elsewhere."""
        raise UnsupportedError(
            f"{self.name}: constraint: stages of a pipeline draw without grammars; load the model "
            "in one process"
        )

    @abstractmethod
    def run(self, lengths: Sequence[int], n_predict: int, options: Options) -> Run:
        """A runner for prompts, or sources, of these lengths. PyflowError: a prompt that does not
        fit, or an option that does not go with the model."""

    @abstractmethod
    def conversation(
        self, *, session: SessionFile | None = None, **cache: Unpack[CacheOptions]
    ) -> Run:
        """A runner of one text, the cache behind a `ChatSession`, which a session may keep."""

    def stream(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Stream:
        """What the model writes, chunk by chunk, each as soon as its token is drawn.

        Also a context manager: leaving it ends the generation. Closing the model does not: the
        weights stay until the stream has ended. Raises like `generate`.
        """
        wish = checked(self, prompt, options)
        return wish.stream(self, self.run(wish.lengths, wish.n_predict, options))

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is also a sequence of texts
        self, prompt: Prompt, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """What the model writes after the prompt; for several prompts a list.

        A prompt is text, continued as it stands, or token ids; of an encoder-decoder it is the
        source. Each of several prompts gives the text that it gives alone; further copies of a
        prompt take further streams of noise.
        A model without a tokenizer continues token ids, and its text stays empty.
        Options: n_predict, sampling, stop, constraint, n_ctx, cache_type, progress, speculator,
        from_language, to_language, adapters, session; see `generate.Options`.
        PyflowError: an empty prompt, one too long for the context, an option out of range.
        TypeError: an unknown option.
        """
        done = self.stream(prompt, **options).read()
        return done[0] if is_one(prompt) else done


def checked(model: Prompted, prompt: Prompt | Sequence[Prompt], options: Options) -> Wish:
    """Prompts and options, checked; raises like `AnyModel.stream`."""
    _check_names(options)
    n_predict = whole("n_predict", options.get("n_predict", model.defaults.n_predict))
    if n_predict < 1 and n_predict != -1:
        raise PyflowError(f"n_predict: expected 1 or more, or -1 for no limit, found {n_predict}")
    stop = stop_texts(options.get("stop", ()))
    if stop:
        _ = model.tokenizer  # NoTokenizerError: without one no text ends by a text
    sampling = options.get("sampling", model.defaults.sampling)
    if not isinstance(sampling, SamplingParams):
        raise PyflowError(f"sampling: expected SamplingParams(...), found {sampling!r}")
    languages = asked_languages(model, options)
    prompts = _tokens(model, prompt, languages)
    seen: Counter[tuple[int, ...]] = Counter()
    streams = []
    for tokens in prompts:
        streams.append(seen[tuple(tokens)])
        seen[tuple(tokens)] += 1
    constraint = options.get("constraint")
    if constraint is not None and not isinstance(constraint, Constraint):
        raise PyflowError(f"constraint: expected Constraint.json_schema(...), found {constraint!r}")
    matchers = [None if constraint is None else model.matcher(constraint) for _ in prompts]
    return Wish(
        prompts,
        streams,
        n_predict,
        sampling.seeded(),
        stop,
        matchers,
        options.get("progress"),
        chosen_adapters(model, options.get("adapters")),
        languages.beginning(model.spec, model.defaults),
    )


def chosen_adapters(model: Prompted, given: object) -> Choice | None:
    """Of a text; None: the default. PyflowError: the model has not loaded one of these."""
    if given is None:
        return None
    return chosen(given, []) if model.adapters is None else model.adapters.choose(given)


def asked_languages(model: Prompted, options: Options) -> Languages:
    """Of sources and answers; raises like `Languages.of`."""
    return Languages.of(model, options.get("from_language"), options.get("to_language"))


def check_fits(n_tokens: int, n_ctx: int, most: int) -> None:
    """PyflowError unless a prompt of n_tokens leaves room for one more token.

    most: the context that the model was trained for; advice names no larger one.
    """
    if n_tokens == 0:
        raise PyflowError("the prompt is empty; give some text to go on from")
    if n_tokens >= n_ctx:
        raise PyflowError(
            f"the prompt has {n_tokens:,} tokens, the context holds {n_ctx:,} with the answer; "
            + (
                f"shorten the prompt, or take a larger context (-c, n_ctx), up to {most:,}"
                if n_ctx < most
                else "shorten the prompt, for the model was trained for no larger context"
            )
        )


def _check_names(options: Collection[str]) -> None:
    """TypeError, as Python's own, for an unknown option."""
    for name in sorted(set(options) - Options.__optional_keys__):
        if name in (field.name for field in dataclasses.fields(SamplingParams)):
            raise TypeError(
                f"unknown option {name!r}: it is a part of sampling; "
                f"write sampling=SamplingParams({name}=...)"
            )
        raise TypeError(
            f"unknown option {name!r}: expected {', '.join(sorted(Options.__optional_keys__))}"
        )


def stop_texts(given: object) -> Sequence[str]:
    """One stop text, or several, as a list. PyflowError: they are no texts, or empty."""
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, Collection) and all(isinstance(text, str) and text for text in texts):
        return [*texts]
    raise PyflowError(f"stop: expected texts that are not empty, found {given!r}")


def is_one(prompt: object) -> bool:
    """Whether this is a single prompt: text, numbers, or something invalid."""
    if isinstance(prompt, str) or not isinstance(prompt, (Sequence, np.ndarray)):
        return True
    return len(prompt) > 0 and not isinstance(prompt[0], (str, Sequence, np.ndarray))


def _tokens(
    model: Prompted, prompt: Prompt | Sequence[Prompt], languages: Languages
) -> list[list[int]]:
    given = cast("Sequence[Prompt]", [prompt] if is_one(prompt) else prompt)
    if len(given) == 0:
        raise PyflowError("prompt: expected text, or at least one token, found nothing")
    if not all(isinstance(one, str) for one in given):
        languages.check_ids()
    return [
        languages.encode(model.tokenizer, one) if isinstance(one, str) else _ids(model, one)
        for one in given
    ]


def _ids(model: Prompted, prompt: Sequence[int]) -> list[int]:
    ids: list[int] = whole_numbers("prompt, unless it is text", prompt).tolist()
    for token in ids:
        if not 0 <= token < model.spec.n_vocab:
            raise ShapeError(
                f"prompt: token {token}: expected 0 to {model.spec.n_vocab - 1}, the vocabulary "
                f"of {model.name}"
            )
    return ids
