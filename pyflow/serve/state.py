"""What the handlers of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyflow.batch.local_runner import Usage
from pyflow.serve.errors import ApiError
from pyflow.serve.metrics import Metrics
from pyflow.serve.prepare import Preparing
from pyflow.serve.settings import RETRY_S, Settings
from pyflow.serve.shelf import Shelf


@dataclass(slots=True, kw_only=True)
class State:
    """Of one server; used in its event loop."""

    settings: Settings
    shelf: Shelf
    metrics: Metrics
    preparing: Preparing = field(default_factory=Preparing)
    is_draining: bool = False
    """The server was told to end: it takes no new requests."""

    def check_open(self) -> None:
        """ApiError while the server ends."""
        if self.is_draining:
            raise ApiError(503, "the server ends and takes no new requests", retry_after=RETRY_S)

    def n_ctx_of(self, name: object) -> int:
        """Tokens that a text of the model of this name may have."""
        return self.shelf.loaded_one(name if isinstance(name, str) else None).n_ctx

    @property
    def n_waiting(self) -> int:
        return sum(served.engine.n_waiting for served in self.shelf.loaded)

    @property
    def n_running(self) -> int:
        return sum(served.engine.n_running for served in self.shelf.loaded)

    @property
    def usages(self) -> list[Usage]:
        """Of the models that are loaded and have cells here."""
        found = (served.engine.usage for served in self.shelf.loaded)
        return [usage for usage in found if usage is not None]

    @property
    def n_jobs(self) -> int:
        """Requests on their way."""
        return sum(served.engine.n_jobs for served in self.shelf.loaded)

    @property
    def is_dead(self) -> bool:
        """Whether an engine has ended by an error."""
        return any(served.engine.error is not None for served in self.shelf.loaded)
