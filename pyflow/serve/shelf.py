"""The models of a server by name: loaded when asked for, unloaded when others need the room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pyflow import catalogue
from pyflow.errors import PyflowError, ResourceError
from pyflow.serve.errors import ApiError
from pyflow.serve.metrics import Metrics
from pyflow.serve.models import Opened, Opening, Served
from pyflow.serve.settings import Settings


class Shelf:
    """Models by name; the first is the default. Used in the event loop."""

    def __init__(
        self,
        openings: Mapping[str, Opening],
        settings: Settings,
        metrics: Metrics,
        died: Callable[[], None],
    ) -> None:
        self.names = [*openings]
        self._openings = openings
        self._settings = settings
        self._metrics = metrics
        self._died = died
        self._loaded: dict[str, Served] = {}  # least recently used first
        self._loading: dict[str, asyncio.Task[Served]] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def loaded(self) -> list[Served]:
        return [*self._loaded.values()]

    def loaded_one(self, name: str | None) -> Served:
        """A model that is in use."""
        return self._loaded[name or self.names[0]]

    def entries(self) -> list[dict[str, object]]:
        """As /v1/models lists them."""
        return [self.entry(name) for name in self.names]

    def entry(self, name: str) -> dict[str, object]:
        """ApiError: no model is called so."""
        self._check(name)
        if name in self._loaded:
            return self._loaded[name].entry()
        return {"id": name, "object": "model", "created": 0, "owned_by": "pyflow", "root": name}

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncGenerator[Served, None]:
        """A model, which stays loaded meanwhile. ApiError: no model is called so, or it cannot be
        loaded."""
        name = name or self.names[0]
        self._check(name)
        served = self._loaded.get(name)
        while served is None:
            try:
                await self.load(name)
            except ResourceError as error:
                raise ApiError(503, f"model: {error}", param="model", retry_after=30) from None
            except PyflowError as error:
                raise ApiError(500, f"model: {error}", param="model") from None
            served = self._loaded.get(name)
        self._loaded[name] = self._loaded.pop(name)
        served.n_users += 1
        try:
            yield served
        finally:
            served.n_users -= 1

    async def load(self, name: str) -> Served:
        """Loads a model. It goes on if whoever waits for it leaves. Raises like `load`."""
        if name not in self._loading:
            task = asyncio.ensure_future(self._load(name))

            def done(task: asyncio.Task[Served]) -> None:
                del self._loading[name]
                _ = task.cancelled() or task.exception()  # perhaps nobody waits any more

            task.add_done_callback(done)
            self._loading[name] = task
        return await asyncio.shield(self._loading[name])

    async def close(self) -> None:
        """Unloads all models; idempotent."""
        if self._loading:
            await asyncio.wait([*self._loading.values()])
        for name in [*self._loaded]:
            await self._loaded[name].close()
            del self._loaded[name]

    def _check(self, name: str) -> None:
        if name not in self._openings:
            raise ApiError(
                404,
                f"model: expected {' or '.join(self.names)}, found {name!r:.80}",
                param="model",
                code="model_not_found",
            )

    async def _load(self, name: str) -> Served:
        async with self._one_at_a_time:
            opening, most = self._openings[name], self._settings.model_nbytes
            if most is not None:
                need = await asyncio.to_thread(opening.nbytes)
                while self._loaded and need + self._nbytes() > most:
                    if not await self._unload_one():
                        raise ResourceError(
                            f"{name}: {need:,} bytes of weights do not fit beside the models that "
                            f"are in use; the limit is {most:,}"
                        )
            while True:
                try:
                    opened = await asyncio.to_thread(Opened.of, opening, self._settings)
                    break
                except ResourceError:
                    if not await self._unload_one():
                        raise
            share = 0.5 if len(self._settings.keys) > 1 else 1.0
            self._loaded[name] = Served(name, opened, self._metrics, self._died, share=share)
            return self._loaded[name]

    def _nbytes(self) -> int:
        return sum(self._openings[name].nbytes() for name in self._loaded)

    async def _unload_one(self) -> bool:
        """Unloads the model that nobody has used for longest; False if all are in use."""
        idle = next((s for s in self.loaded if s.n_users == 0), None)
        if idle is None:
            return False
        del self._loaded[idle.name]
        await idle.close()
        return True


def name_of(given: str) -> str:
    """What clients call a model that the command line names so."""
    if given in {entry.name for entry in catalogue.models()}:
        return given
    path = Path(given)
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else given
