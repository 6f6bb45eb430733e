"""From checked requests to texts: what the APIs that write have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pyflow.batch.completion import Completion
from pyflow.batch.request import Request
from pyflow.serve.api.sampling import Sampled, usage
from pyflow.serve.job import Job
from pyflow.serve.models import Served
from pyflow.serve.replies import frame


@dataclass(frozen=True, slots=True)
class Writing:
    """The texts that a request asks for, and what all its answers begin with."""

    served: Served
    requests: Sequence[Request]
    head: dict[str, object]
    n_choices: int
    """Answers to each prompt."""

    @classmethod
    def of(cls, served: Served, body: Sampled, requests: Sequence[Request], prefix: str) -> Writing:
        head: dict[str, object] = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": "",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "seed": requests[0].sampling.seed,
        }
        return cls(served, requests, head, body.n)

    @asynccontextmanager
    async def job(self) -> AsyncGenerator[Job, None]:
        """The texts on their way; whoever leaves early ends them."""
        job = self.served.engine.submit(self.requests)
        try:
            yield job
        finally:
            self.served.engine.cancel(job)

    async def completions(self) -> list[Completion]:
        async with self.job() as job:
            return await job.completions()

    def body(
        self, kind: str, choices: Sequence[object], completions: Sequence[Completion]
    ) -> dict[str, object]:
        """A whole answer."""
        return {
            **self.head,
            "object": kind,
            "choices": choices,
            "usage": usage(completions, self.n_choices),
            "timings": completions[0].timings.as_dict(),
        }

    def chunk(self, kind: str, choice: object, *, with_usage: bool) -> bytes:
        """A frame with one choice; usage is null until the last, where it is asked for."""
        value = {**self.head, "object": kind, "choices": [choice]}
        return frame({**value, "usage": None} if with_usage else value)

    def last(self, kind: str, completions: Sequence[Completion]) -> bytes:
        """The frame with the usage, which has no choice."""
        return frame(self.body(kind, [], completions))
