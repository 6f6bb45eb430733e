"""Who may come in: checks of a request's headers, before anything else looks at it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyflow.serve.errors import ApiError
from pyflow.serve.http.replies import Reply
from pyflow.serve.settings import MAX_BODY, Settings, tenant

OPEN = frozenset({"/", "/health"})
"""Paths that need no key, beside those below `OPEN_BELOW`."""
OPEN_BELOW = "/page/"
_METHODS = "GET, POST, OPTIONS"
_HEADERS = "authorization, content-type, x-api-key"


class Guard:
    """Middleware: refuses by Host, Origin, Content-Type and key, in this order.

    A name in Host that is not ours means a page that was pointed at this machine (DNS rebinding);
    an Origin that is not ours, another page. A form cannot send application/json.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        refused: Callable[[ApiError], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._hosts = settings.hosts
        self._origins = frozenset(settings.allow_origins)
        self._takes_addresses = not settings.is_local
        self._keys = [(hashlib.sha256(key.encode()).digest(), key) for key in settings.keys]
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a WebSocket is closed
        headers = _Headers(scope["headers"])
        origin = headers.get("origin")
        if origin in self._origins:
            send = _telling(send, origin)
        try:
            headers.check_single("host", "origin")
            self._check_host(headers.get("host"))
            self._check_origin(origin, headers.get("host"))
            if scope["method"] == "OPTIONS" and origin is not None:
                await Reply(b"", status=204).send(send)
                return
            _check_content(scope["method"], headers)
            scope["state"]["tenant"] = self._check_key(scope["path"], headers)
            _check_length(headers.get("content-length"))
        except ApiError as error:
            self._refused(error)
            await Reply.of_error(error, scope["path"]).send(send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, host: str | None) -> None:
        name = _without_port((host or "").lower())
        if name in self._hosts or (self._takes_addresses and _is_address(name)):
            return
        raise ApiError(
            403,
            f"Host: expected {' or '.join(sorted(self._hosts))}, found {host!r:.80}; "
            "start the server with --allow-host NAME to serve a name",
        )

    def _check_origin(self, origin: str | None, host: str | None) -> None:
        if origin is None or origin in self._origins:
            return
        scheme, _, name = origin.lower().partition("://")
        if scheme not in {"http", "https"} or name != (host or "").lower():
            raise ApiError(
                403,
                f"Origin: expected http://{host:.80}, found {origin!r:.80}; "
                "start the server with --allow-origin ORIGIN to let its pages in",
            )

    def _check_key(self, path: str, headers: _Headers) -> str:
        """Who asks."""
        if not self._keys or path in OPEN or path.startswith(OPEN_BELOW):
            return ""
        kind, _, given = (headers.get("authorization") or "").partition(" ")
        key = headers.get("x-api-key") or (given.strip() if kind.lower() == "bearer" else "")
        digest, found = hashlib.sha256(key.encode("latin-1", "replace")).digest(), ""
        for known, name in self._keys:
            if hmac.compare_digest(digest, known):
                found = name
        if not found:
            raise ApiError(
                401,
                "the key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
            )
        return tenant(found)


class _Headers:
    """The first value of each header."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            values = self._values.setdefault(name.decode("latin-1"), [])
            values.append(value.decode("latin-1"))

    def get(self, name: str) -> str | None:
        return self._values.get(name, [None])[0]

    def check_single(self, *names: str) -> None:
        """ApiError if a header comes twice: others may go by the second one."""
        for name in names:
            if (n := len(self._values.get(name, ()))) > 1:
                raise ApiError(403, f"{name.capitalize()}: expected one such header, found {n}")


def _check_content(method: str, headers: _Headers) -> None:
    kind = (headers.get("content-type") or "").partition(";")[0].strip().lower()
    if method == "POST" and kind != "application/json":
        raise ApiError(415, f"Content-Type: expected application/json, found {kind!r:.80}")


def _check_length(length: str | None) -> None:
    if length is not None and length.isascii() and length.isdigit() and int(length) > MAX_BODY:
        raise too_large(int(length))


def too_large(found: int) -> ApiError:
    return ApiError(413, f"the body has {found:,} bytes or more, the limit is {MAX_BODY:,}")


def _telling(send: Send, origin: str | None) -> Send:
    """Lets a page of a listed origin read the answer."""
    assert origin is not None
    more = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", _METHODS.encode()),
        (b"access-control-allow-headers", _HEADERS.encode()),
        (b"vary", b"origin"),
    ]

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return told


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host


def _is_address(name: str) -> bool:
    """Whether this is an address, which no DNS answer can point elsewhere."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
