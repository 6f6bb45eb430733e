"""Models that write, in this process or as a pipeline over several stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack, overload

from pyflow.chat import ChatTemplate
from pyflow.engine.defaults import Defaults
from pyflow.generate.completion import Completion
from pyflow.generate.conversation import CacheOptions, Conversation
from pyflow.generate.prompts import Options, Prompt, Run, checked, is_one
from pyflow.generate.stream import Stream
from pyflow.specs.model_spec import ModelSpec
from pyflow.tokenizer import Tokenizer


class AnyModel(ABC):
    """Writes text. Where its layers are is up to the runner that it gives."""

    path: Path
    spec: ModelSpec
    defaults: Defaults
    n_threads: int
    load_ms: float

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

    @abstractmethod
    def run(self, lengths: Sequence[int], n_predict: int, options: Options) -> Run:
        """A runner for prompts of these lengths. PyflowError: a prompt that does not fit, or an
        option that does not go with the model."""

    @abstractmethod
    def conversation(self, **cache: Unpack[CacheOptions]) -> Conversation:
        """The cache behind a `ChatSession`."""

    def stream(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Stream:
        """What the model writes, chunk by chunk, each as soon as its token is drawn.

        Also a context manager: leaving it ends the generation. Raises like `generate`.
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

        A prompt is text, continued as it stands, or token ids. Each of several prompts gives the
        text that it gives alone; further copies of a prompt take further streams of noise.
        Options: n_predict, sampling, stop, n_ctx, cache_type, progress; see `generate.Options`.
        PyflowError: an empty prompt, one too long for the context, an option out of range.
        TypeError: an unknown option.
        """
        done = self.stream(prompt, **options).read()
        return done[0] if is_one(prompt) else done
