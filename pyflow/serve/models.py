"""The models of a server, by the names that clients use."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyflow import catalogue
from pyflow.batch.completion import Completion
from pyflow.batch.request import Request
from pyflow.constrain import Constraint, Matcher
from pyflow.model import Model
from pyflow.serve.engine import Engine, runner_for
from pyflow.serve.errors import ApiError, too_long
from pyflow.serve.job import Job
from pyflow.serve.metrics import Metrics
from pyflow.serve.settings import Settings


class Served:
    """A model that is loaded, and the engine that answers with it."""

    def __init__(
        self,
        name: str,
        model: Model,
        settings: Settings,
        metrics: Metrics,
        died: Callable[[], None],
    ) -> None:
        """In the event loop. ResourceError: its cells do not fit into memory."""
        self.name = name
        self.model = model
        self.created = int(time.time())
        self._cache_type = settings.cache_type
        runner, self.n_ctx = runner_for(model, settings)
        self.engine = Engine(runner, model, metrics, died)

    @cached_property
    def fingerprint(self) -> str:
        """Of all that decides what a seed draws: weights and their type, cache, template."""
        digest = hashlib.blake2b(self.model.fingerprint.encode(), digest_size=8)
        template = self.model.metadata.get("tokenizer.chat_template", "")
        digest.update(repr((self._cache_type, template)).encode())
        return f"fp_{digest.hexdigest()}"

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

    def check_tokens(self, tokens: Sequence[int], *, param: str, room: int = 1) -> None:
        """ApiError unless a text of these tokens fits, with so many more."""
        if not tokens:
            raise ApiError(400, f"{param}: expected some text, found none", param=param)
        if len(tokens) + room > self.n_ctx:
            raise too_long(len(tokens), self.n_ctx, param)
        most = self.model.spec.n_vocab
        wrong = next((token for token in tokens if not 0 <= token < most), None)
        if wrong is not None:
            raise ApiError(
                400, f"{param}: expected tokens from 0 to {most - 1}, found {wrong}", param=param
            )

    def matchers(self, constraint: Constraint | None) -> Callable[[], Matcher | None]:
        """Makes what holds one text to the constraint. In the preparing thread: it may take a
        second. ConstraintError."""
        if constraint is None:
            return lambda: None
        return lambda: self.model.matcher(constraint)

    async def answered(self, requests: Sequence[Request]) -> list[Completion]:
        """The texts of requests, once they have ended; whoever leaves early ends them. ApiError."""
        async with self.job(requests) as job:
            return await job.completions()

    @asynccontextmanager
    async def job(self, requests: Sequence[Request]) -> AsyncGenerator[Job, None]:
        """Texts on their way; whoever leaves early ends them. ApiError."""
        job = self.engine.submit(requests)
        try:
            yield job
        finally:
            self.engine.cancel(job)

    async def close(self) -> None:
        """The model stays open: it is the caller's."""
        await self.engine.close()


@dataclass(frozen=True, slots=True)
class Shelf:
    """Models by name; the first is the default."""

    served: dict[str, Served]

    def get(self, name: str | None) -> Served:
        """ApiError: no model is called so."""
        if not name:
            return next(iter(self.served.values()))
        if name not in self.served:
            raise ApiError(
                404,
                f"model: expected {' or '.join(self.served)}, found {name!r:.80}",
                param="model",
                code="model_not_found",
            )
        return self.served[name]


def name_of(given: str) -> str:
    """What clients call a model that the command line names so."""
    if given in {entry.name for entry in catalogue.models()}:
        return given
    path = Path(given)
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else given
