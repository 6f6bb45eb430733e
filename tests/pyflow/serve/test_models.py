"""Several models from one server, and drafts that change no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest

from pyflow.errors import FormatError
from pyflow.model import Model
from pyflow.serve.errors import ApiError
from pyflow.serve.metrics import Metrics
from pyflow.serve.models import Opening
from pyflow.serve.settings import Settings
from pyflow.serve.shelf import Shelf, name_of
from pyflow.speculate import Speculation, Speculator, speculator

from .conftest import Server, dressed

ROOM = Settings(n_parallel=1, n_ctx=32, n_cells=32, model_nbytes=2500)


class Openings:
    """Models of 1,000 bytes each, and which of them are in memory."""

    def __init__(self, make_model: Any, names: str) -> None:
        self.make_model = make_model
        self.open: list[str] = []
        self.shelf = Shelf(
            {name: Opening(lambda name=name: self.opened(name), lambda: 1000) for name in names},
            ROOM,
            Metrics(),
            lambda: None,
        )

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[Any, None]]:
        if name == "x":
            raise FormatError("x.gguf: broken")
        self.open.append(name)
        yield dressed(self.make_model()), None
        self.open.remove(name)


def test_models_come_when_asked_for_and_go_when_others_need_the_room(make_model: Any) -> None:
    async def go() -> None:
        found = Openings(make_model, "abcx")
        shelf = found.shelf
        async with shelf.use("a"), shelf.use("b"):
            assert found.open == ["a", "b"]
            with pytest.raises(ApiError) as refused:
                async with shelf.use("c"):
                    pass
            assert (refused.value.status, refused.value.param) == (503, "model")
        async with shelf.use(None) as default:
            assert default.name == "a"
        async with shelf.use("c"):
            assert found.open == ["a", "c"]  # b was not used for longest
        with pytest.raises(ApiError) as broken:
            async with shelf.use("x"):
                pass
        assert (broken.value.status, "x.gguf" in str(broken.value)) == (500, True)
        assert [entry["id"] for entry in shelf.entries()] == [*"abcx"]
        await shelf.close()
        assert found.open == []

    asyncio.run(go())


def test_many_who_ask_at_once_load_a_model_once(make_model: Any) -> None:
    async def go() -> None:
        found = Openings(make_model, "ab")
        async with AsyncExitStack() as stack:
            users = [stack.enter_async_context(found.shelf.use("b")) for _ in range(5)]
            assert len({id(served) for served in await asyncio.gather(*users)}) == 1
            assert found.open == ["b"]
        await found.shelf.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("given", "name"),
    [("smollm2", "smollm2"), ("x/y/model-q4.gguf", "model-q4"), ("hf:a/b:Q4_0", "hf:a/b:Q4_0")],
)
def test_models_are_called_as_they_are_given(given: str, name: str) -> None:
    assert name_of(given) == name


def test_drafts_change_no_answer(server: Server, smollm2: Model) -> None:
    @contextmanager
    def opened() -> Iterator[tuple[Model, Speculator]]:
        with speculator(smollm2, Speculation(method="lookup")) as drafts:
            yield smollm2, drafts

    prompt = "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,"
    bodies: list[dict[str, Any]] = [
        {"prompt": prompt, "temperature": t, "seed": i, "max_tokens": 12, "logprobs": 1}
        for i, t in enumerate([0, 0, 0.5])
    ]
    drafting = Server(
        {"smollm2": Opening(opened, lambda: 0)}, Settings(port=0, n_parallel=3, n_ctx=64)
    )
    with ThreadPoolExecutor(3) as clients:
        found = list(
            clients.map(lambda body: drafting.post("/v1/completions", **body)["choices"], bodies)
        )
    drafting.stop()
    assert drafting.failed is None
    assert found == [server.post("/v1/completions", **body)["choices"] for body in bodies]
