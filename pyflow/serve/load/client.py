"""One streamed request to a server, and when its parts came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pyflow.errors import PyflowError

_MAX_LINE = 16 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A server: its address up to /v1, and the model to ask for."""

    host: str
    port: int
    base: str
    model: str | None = None
    key: str | None = None
    label: str = ""

    @classmethod
    def parse(cls, url: str, *, model: str | None = None, key: str | None = None) -> Target:
        """PyflowError unless it is as in http://127.0.0.1:8080/v1; the end may be left out.

        A label may stand before it, as in before=http://127.0.0.1:8080.
        """
        label, is_labelled, rest = url.partition("=")
        if is_labelled and ":" not in label:
            url = rest
        else:
            label = ""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise PyflowError(f"server: expected http://HOST:PORT, found {url!r:.80}")
        base = parts.path.rstrip("/")
        return cls(parts.hostname, port, base or "/v1", model, key, label)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        return self.label or self.address


@dataclass(slots=True)
class Sample:
    """A request, by a monotonic clock in seconds."""

    kind: str
    sent: float
    arrivals: list[float] = field(default_factory=list)
    """Of the chunks that hold text."""
    ended: float = 0.0
    n_prompt: int = 0
    n_tokens: int = 0
    """Of the answer, as the server counts them in `usage`."""
    n_cached: int = 0
    error: str = ""
    text: str = ""

    @property
    def ttft(self) -> float:
        """From sending to the first text."""
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Between chunks."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(1, self.n_tokens - 1)


async def ask(target: Target, kind: str, body: Mapping[str, Any], timeout_s: float) -> Sample:
    """Sends one request and reads its answer; failures are told in the sample."""
    sample = Sample(kind, time.monotonic())
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    if target.model is not None:
        whole["model"] = target.model
    try:
        async with asyncio.timeout(timeout_s):
            async for data in _events(target, whole):
                _take(sample, data)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    sample.ended = time.monotonic()
    if not sample.error and not sample.arrivals:
        sample.error = "no text came"
    return sample


async def get(target: Target, path: str, timeout_s: float = 10.0) -> Any:
    """The JSON of a path below the base. PyflowError: the server cannot be reached."""
    try:
        async with asyncio.timeout(timeout_s):
            status, lines = await _request(target, "GET", path, b"")
            raw = b"".join([line async for line in lines])
        if status != 200:
            raise ValueError(f"status {status}")
        return json.loads(raw)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        raise PyflowError(
            f"http://{target.address}{target.base}{path}: {str(error) or type(error).__name__}; "
            "is a server running there, and is the key right?"
        ) from None


def _take(sample: Sample, data: Mapping[str, Any]) -> None:
    if data.get("error"):
        raise ValueError(str(data["error"])[:200])
    for choice in data.get("choices", ()):
        text = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        if text:
            sample.arrivals.append(time.monotonic())
            sample.text += text
    if usage := data.get("usage"):
        sample.n_prompt = usage["prompt_tokens"]
        sample.n_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        sample.n_cached = details.get("cached_tokens") or 0


async def _events(target: Target, body: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON of the frames of a stream."""
    raw = json.dumps(body).encode()
    status, lines = await _request(target, "POST", "/chat/completions", raw)
    if status != 200:
        text = b"".join([line async for line in lines]).decode(errors="replace")
        raise ValueError(f"status {status}: {text:.200}")
    async for line in lines:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data.startswith(b"[DONE]"):
                return
            yield json.loads(data)


async def _request(
    target: Target, method: str, path: str, body: bytes
) -> tuple[int, AsyncIterator[bytes]]:
    """Status, and the lines of the body; the connection ends with them."""
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=_MAX_LINE)
    try:
        head = [
            f"{method} {target.base}{path} HTTP/1.1",
            f"Host: {target.address}",
            "Connection: close",
            "Accept: text/event-stream, application/json",
        ]
        if target.key is not None:
            head.append(f"Authorization: Bearer {target.key}")
        if body:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        headers = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
    except (IndexError, BaseException):
        writer.close()
        raise
    return status, _lines(reader, writer, headers)


async def _lines(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str]
) -> AsyncIterator[bytes]:
    try:
        rest = b""
        async for piece in _pieces(reader, headers):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if rest:
            yield rest
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        while piece := await reader.read(1 << 16):
            yield piece
        return
    while n := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(n)
        await reader.readline()
