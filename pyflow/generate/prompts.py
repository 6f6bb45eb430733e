"""From prompts to a running stream."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack, cast, overload

import numpy as np

from pyflow.arguments import whole, whole_numbers
from pyflow.engine.context import CacheType, Context, Progress
from pyflow.engine.loaded import LoadedModel
from pyflow.engine.model_files import ModelFiles
from pyflow.errors import PyflowError, ShapeError
from pyflow.generate.completion import Completion
from pyflow.generate.local_runner import LocalRunner
from pyflow.generate.stream import Request, Stream, View
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculator

Prompt: TypeAlias = str | Sequence[int]
"""Text, which gets BOS where the model wants one, or token ids, which are taken as they are."""

# One pass over the weights serves up to 16 rows: so many sequences cost little more than one.
N_PARALLEL = 16
# Room for an answer whose length is left open.
OPEN_END = 4096


class Options(TypedDict, total=False):
    """How to go on from prompts; the same for all of them."""

    n_predict: int
    """Tokens to draw at most; -1 goes on to the end of the answer or context, which is the default
    where the model's files have no other."""
    sampling: SamplingParams
    """The default is what the model's files say. Without a seed, one is drawn; the completion
    tells it."""
    stop: Sequence[str]
    """The text ends before the first of these, no part of which is ever given out."""
    n_ctx: int | None
    """Tokens of a prompt and its answer together; None suits prompt and n_predict."""
    cache_type: CacheType
    """How keys and values are kept: f16, the default, or q8_0."""
    progress: Progress | None
    """Called as progress(done, total) while long prompts are read."""
    speculator: Speculator | None
    """Drafts what the model then verifies, several tokens at a time; the same tokens come out."""


class Generates(ABC):
    """Writes text, by a stream."""

    @abstractmethod
    def stream(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Stream:
        """What the model writes, chunk by chunk, each as soon as its token is drawn.

        Also a context manager: leaving it ends the generation.
        """

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

        A prompt is text, continued as it stands, or token ids. Options: n_predict, sampling, stop,
        n_ctx, cache_type, progress; see `generate.Options`.
        PyflowError: an empty prompt, one too long for the context, an option out of range.
        TypeError: an unknown option.
        """
        done = self.stream(prompt, **options).read()
        return done[0] if is_one(prompt) else done


def stream(
    source: LoadedModel | Context, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
) -> Stream:
    """What the model writes, chunk by chunk, each as soon as its token is drawn.

    source: a model, which gets a context of the size that this call needs; or a context, whose
        sequences are cleared and whose size counts.

    Several prompts run as sequences of one batch. Each gives the text that it gives alone; further
    copies of a prompt take further streams of noise.

    PyflowError: an empty prompt, one that does not fit into the context, a parameter out of range.
    TypeError: an unknown option.
    """
    model = source.model if isinstance(source, Context) else source
    _ = model.tokenizer  # what is drawn becomes text: without one nothing may begin
    wish = checked(model, prompt, options)
    speculator = options.get("speculator")
    if speculator is not None and not isinstance(speculator, Speculator):
        raise PyflowError(
            f"speculator: expected one of pyflow.speculate.speculator(...), found {speculator!r}"
        )
    n_ctx = options.get("n_ctx")
    if n_ctx is not None:
        n_ctx = whole("n_ctx", n_ctx, 0)
        if isinstance(source, Context):
            raise PyflowError("n_ctx: a context has its own; leave n_ctx out, or give the model")
        if n_ctx > model.spec.n_ctx_train:
            raise ShapeError(
                f"n_ctx: expected up to {model.spec.n_ctx_train:,}, the context that {model.name} "
                f"was trained for; found {n_ctx:,}"
            )
    limits = [_limit(source, len(tokens), wish.n_predict, n_ctx) for tokens in wish.prompts]
    runner = _runner(source, limits, options.get("cache_type", "f16"), speculator)
    return Stream(
        runner,
        model,
        wish.requests(limits),
        owned=not isinstance(source, Context),
        progress=options.get("progress"),
    )


def _limit(source: LoadedModel | Context, n_tokens: int, n_predict: int, n_ctx: int | None) -> int:
    """Positions that a prompt of so many tokens and its answer may take; PyflowError for none."""
    wanted = n_tokens + (n_predict if n_predict > 0 else OPEN_END)
    if isinstance(source, Context):
        limit = source.n_ctx
    else:
        limit = n_ctx or min(source.spec.n_ctx_train, wanted)
    check_fits(n_tokens, limit)
    return min(limit, wanted) if n_predict > 0 else limit


def _runner(
    source: LoadedModel | Context,
    limits: Sequence[int],
    cache_type: CacheType,
    speculator: Speculator | None,
) -> LocalRunner:
    """A runner for as many texts at once as fit; a model gives it a context of its own."""
    most_first = sorted(limits, reverse=True)
    n_parallel = min(len(limits), N_PARALLEL)
    if isinstance(source, Context):
        source.clear()
        n_parallel = min(n_parallel, source.n_seq_max)
        while n_parallel > 1 and sum(most_first[:n_parallel]) > source.n_ctx:
            n_parallel -= 1
        return LocalRunner(source, speculator, n_parallel=n_parallel)
    n_cells = sum(most_first[:n_parallel])
    if speculator is not None:
        # Trees must fit in beside the text until its end.
        most = n_parallel * source.spec.n_ctx_train
        n_cells = min(n_cells + n_parallel * speculator.n_max, most)
    context = source.context(n_cells, n_seq_max=n_parallel, cache_type=cache_type)
    return LocalRunner(context, speculator, n_parallel=n_parallel)


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

    def requests(self, limits: Sequence[int]) -> list[Request]:
        """limits: positions that each text may take."""
        return [
            Request(
                view=View(tokens, noise_stream),
                sampling=self.sampling,
                limit=limit,
                n_predict=self.n_predict,
                stop=self.stop,
            )
            for tokens, noise_stream, limit in zip(
                self.prompts, self.noise_streams, limits, strict=True
            )
        ]


def checked(
    model: ModelFiles, prompt: Prompt | Sequence[Prompt], options: Mapping[str, Any]
) -> Wish:
    """Prompts and options, checked; raises like `stream`."""
    _check_names(options)
    n_predict = whole("n_predict", options.get("n_predict", model.defaults.n_predict))
    if n_predict < 1 and n_predict != -1:
        raise PyflowError(f"n_predict: expected 1 or more, or -1 for no limit, found {n_predict}")
    stop = options.get("stop", ())
    if not _are_texts(stop):
        raise PyflowError(f"stop: expected a list of texts that are not empty, found {stop!r}")
    sampling = options.get("sampling", model.defaults.sampling)
    if not isinstance(sampling, SamplingParams):
        raise PyflowError(f"sampling: expected SamplingParams(...), found {sampling!r}")
    prompts = _tokens(model, prompt)
    seen: Counter[tuple[int, ...]] = Counter()
    streams = []
    for tokens in prompts:
        streams.append(seen[tuple(tokens)])
        seen[tuple(tokens)] += 1
    return Wish(prompts, streams, n_predict, sampling.seeded(), stop)


def check_fits(n_tokens: int, n_ctx: int) -> None:
    """PyflowError unless a prompt of so many tokens leaves room for one more."""
    if n_tokens == 0:
        raise PyflowError("the prompt is empty; give some text to go on from")
    if n_tokens >= n_ctx:
        raise PyflowError(
            f"the prompt has {n_tokens:,} tokens, the context holds {n_ctx:,} with the answer; "
            f"shorten the prompt or take a larger context"
        )


def _check_names(options: Collection[str]) -> None:
    """TypeError, as Python's own, for an option that there is not."""
    for name in sorted(set(options) - Options.__optional_keys__):
        if name in (field.name for field in dataclasses.fields(SamplingParams)):
            raise TypeError(
                f"unknown option {name!r}: it is a part of sampling; "
                f"write sampling=SamplingParams({name}=...)"
            )
        raise TypeError(
            f"unknown option {name!r}: expected {', '.join(sorted(Options.__optional_keys__))}"
        )


def _are_texts(given: object) -> bool:
    return (
        isinstance(given, Collection)
        and not isinstance(given, str)
        and all(isinstance(text, str) and text for text in given)
    )


def is_one(prompt: object) -> bool:
    """Whether this is a single prompt, text or numbers, or else what is none at all."""
    if isinstance(prompt, str) or not isinstance(prompt, (Sequence, np.ndarray)):
        return True
    return len(prompt) > 0 and not isinstance(prompt[0], (str, Sequence, np.ndarray))


def _tokens(model: ModelFiles, prompt: Prompt | Sequence[Prompt]) -> list[list[int]]:
    given = cast("Sequence[Prompt]", [prompt] if is_one(prompt) else prompt)
    if len(given) == 0:
        raise PyflowError("prompts: expected at least one, found none")
    return [model.tokenizer.encode(p) if isinstance(p, str) else _ids(model, p) for p in given]


def _ids(model: ModelFiles, prompt: Sequence[int]) -> list[int]:
    ids: list[int] = whole_numbers("prompt, unless it is text", prompt).tolist()
    for token in ids:
        if not 0 <= token < model.spec.n_vocab:
            raise ShapeError(
                f"prompt: token {token}: expected 0 to {model.spec.n_vocab - 1}, the vocabulary "
                f"of {model.name}"
            )
    return ids
