"""A model that is served: its texts, and what they are checked against."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from pyflow import _core
from pyflow.batch.completion import Completion
from pyflow.batch.local_runner import LocalRunner
from pyflow.batch.request import Request
from pyflow.batch.runner import Runner
from pyflow.chat.guardrail import GUARDRAIL
from pyflow.cluster.model import PipelinedModel
from pyflow.cluster.run.runner import check_sampling
from pyflow.constrain import Constraint, Matcher
from pyflow.engine.loaded import encoder_writes_nothing
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.sources import reads_sources
from pyflow.errors import PyflowError
from pyflow.model import Model
from pyflow.serve.encoding import Encoding
from pyflow.serve.engine import Engine, runner_for
from pyflow.serve.errors import ApiError, of_request, too_long
from pyflow.serve.job import Job
from pyflow.serve.metrics import Metrics
from pyflow.serve.settings import Settings
from pyflow.speculate import Speculator
from pyflow.tokenizer import NoTokenizerError


class Held(NamedTuple):
    """What an answer is held to, and the field of the request that says so."""

    field: str
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class Opening:
    """How a model is loaded, when somebody asks for it."""

    open: Callable[[], AbstractContextManager[tuple[Model | PipelinedModel, Speculator | None]]]
    """Raises like `load`; leaving it frees the model."""
    nbytes: Callable[[], int]
    """Of the weights."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model in memory, and a runner that has its cells."""

    model: ModelFiles
    runner: Runner
    n_ctx: int
    """Positions that a text and its answer may take."""
    fingerprint: str
    """Of all that decides what a seed draws: weights and their type, cache, template, guardrail."""
    longest: int
    """Bytes of the longest token."""
    guardrail: bool
    """Whether conversations begin with it."""
    stack: ExitStack
    """Frees the model."""

    @classmethod
    def of(cls, opening: Opening, settings: Settings) -> Opened:
        """In a thread, for it takes long. ResourceError: it does not fit into memory."""
        with ExitStack() as stack:
            opened, speculator = stack.enter_context(opening.open())
            runner, n_ctx = runner_for(opened, settings, speculator)
            model = opened.files if isinstance(opened, PipelinedModel) else opened
            digest = hashlib.blake2b(model.fingerprint.encode(), digest_size=8)
            template = model.metadata.get("tokenizer.chat_template", "")
            digest.update(repr((settings.cache_type, template)).encode())
            if (prefill := _core.cpu_info()["prefill"]) != "decode":
                digest.update(prefill.encode())
            digest.update(opened.inexact.encode())
            if settings.guardrail:
                digest.update(GUARDRAIL.encode())
            with suppress(PyflowError):
                # The vocabulary of grammars, whose making stops all other threads for 0.1 s.
                model.matcher(Constraint.json_object())
            mark, longest = f"fp_{digest.hexdigest()}", _longest_token(model)
            rest = stack.pop_all()
            return cls(model, runner, n_ctx, mark, longest, settings.guardrail, rest)


def _longest_token(model: ModelFiles) -> int:
    """Its bytes; 1 where no text has tokens."""
    try:
        tokenizer = model.tokenizer
    except NoTokenizerError:
        return 1
    return max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.n_vocab))


class Served:
    """A model that is loaded, and the engine that answers with it. Used in the event loop."""

    def __init__(
        self,
        name: str,
        opened: Opened,
        metrics: Metrics,
        died: Callable[[], None],
        *,
        share: float = 1.0,
    ) -> None:
        """share: how much of the queue one key may fill."""
        self.name = name
        self.model = opened.model
        self.n_ctx = opened.n_ctx
        self.fingerprint = opened.fingerprint
        self._longest = opened.longest
        self.guardrail = opened.guardrail
        self.created = int(time.time())
        self.n_users = 0
        """Requests that need it."""
        self.encoding: Encoding | None = None
        """Where an encoder makes vectors; None for a model that writes."""
        if opened.model.spec.is_encoder:
            self.encoding = Encoding(self.encoder_model.encoder)
        self.n_source: int | None = None
        """Tokens of a source at most, of a model that reads one."""
        if opened.model.spec.source:
            runner = opened.runner
            n_source = runner.n_source if isinstance(runner, LocalRunner) else opened.n_ctx
            self.n_source = min(n_source, opened.model.spec.n_ctx_train)
        self._draws_alone = self.encoding is None and not isinstance(opened.runner, LocalRunner)
        self.engine = Engine(opened.runner, opened.model, metrics, died, share=share)
        self._stack = opened.stack

    @property
    def encoder_model(self) -> Model:
        """Where `encoding` is not None: the model with its weights."""
        assert isinstance(self.model, Model)
        return self.model

    def entry(self) -> dict[str, object]:
        """As /v1/models lists it."""
        spec = self.model.spec
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "pyflow",
            "root": self.name,
            "max_model_len": self.n_ctx,
            "meta": {
                "n_ctx_train": spec.n_ctx_train,
                "n_vocab": spec.n_vocab,
                "n_embd": spec.n_embd,
                "n_params": sum(math.prod(t.shape) for t in self.model.checkpoint.tensors),
                "size": sum(t.nbytes for t in self.model.checkpoint.tensors),
            },
        }

    def check_size(self, *texts: str, param: str) -> None:
        """ApiError for a text that is too long in any tokens, before anybody counts them."""
        n, most = sum(map(len, texts)), self.n_ctx * self._longest
        if n > most:
            raise ApiError(
                400,
                f"{param}: {n:,} characters are more than the {self.n_ctx:,} tokens of a request "
                f"may have, {most:,}",
                param=param,
                code="context_length_exceeded",
            )

    def check_tokens(self, tokens: Sequence[int], *, param: str, room: int = 1) -> None:
        """ApiError unless a text of these tokens fits, with so many more."""
        if not tokens:
            raise ApiError(400, f"{param}: expected some text, found none", param=param)
        most = self.n_ctx if self.n_source is None else self.n_source + room
        if len(tokens) + room > most:
            raise too_long(len(tokens), most, param)
        most = self.model.spec.n_vocab
        wrong = next((token for token in tokens if not 0 <= token < most), None)
        if wrong is not None:
            raise ApiError(
                400, f"{param}: expected tokens from 0 to {most - 1}, found {wrong}", param=param
            )

    def matchers(self, held: Held | None) -> Callable[[], Matcher | None]:
        """Makes what holds one text to a field's constraint. In the preparing thread: it may take
        a second. ApiError, naming the field."""
        if held is None:
            return lambda: None

        def make() -> Matcher:
            try:
                return self.model.matcher(held.constraint)
            except PyflowError as error:
                raise of_request(error, held.field) from None

        return make

    async def answered(self, requests: Sequence[Request]) -> list[Completion]:
        """The texts of requests, once they have ended; whoever leaves early ends them. ApiError."""
        async with self.job(requests) as job:
            return await job.completions()

    @asynccontextmanager
    async def job(self, requests: Sequence[Request]) -> AsyncGenerator[Job, None]:
        """Texts on their way; whoever leaves early ends them. ApiError."""
        if self.encoding is not None:
            raise ApiError(400, encoder_writes_nothing(self.model.spec), param="model")
        if self.n_source is not None and any(request.source is None for request in requests):
            what = reads_sources(self.model.spec)
            raise ApiError(400, f"model: {what}, or /v1/completions", param="model")
        for request in requests if self._draws_alone else ():
            self._check_draws(request)
        job = self.engine.submit(requests)
        try:
            yield job
        finally:
            self.engine.cancel(job)

    def _check_draws(self, request: Request) -> None:
        """ApiError for what needs more than drawn tokens, which are all that a pipeline returns."""
        asks = {
            "logprobs": request.sampling.n_logprobs or request.n_report is not None,
            "input": request.pooling,
            "response_format": request.matcher,
        }
        for param, asked in asks.items():
            if asked:
                raise ApiError(
                    400,
                    f"{param}: this server runs a pipeline, whose stages return tokens alone; "
                    "ask a server without --pipeline",
                    param=param,
                )
        try:
            check_sampling(request.sampling)
        except PyflowError as error:
            raise ApiError(400, str(error), param=str(error).partition(":")[0]) from None

    async def close(self) -> None:
        """Ends what runs and frees the model; idempotent."""
        if self.encoding is not None:
            await self.encoding.close()
        await self.engine.close()
        self._stack.close()
