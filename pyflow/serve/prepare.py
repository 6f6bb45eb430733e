"""The thread that turns texts into tokens, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyflow.errors import PyflowError
from pyflow.serve.errors import of_request

T = TypeVar("T")


class Preparing:
    """One thread for templates, tokenizers and grammars."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pyflow-prepare")

    async def run(self, work: Callable[[], T], param: str | None = None) -> T:
        """What `work` returns. ApiError, naming `param`, for a PyflowError; a client that goes away
        while its work waits has it dropped."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except PyflowError as error:
            raise of_request(error, param) from None

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
