"""The chat page: its files, and the headers they are sent with."""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyflow.serve.http.guard import OPEN_BELOW

_INDEX = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Nothing inline, nothing foreign, and no way from text to HTML: what a model writes stays text.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


def routes() -> list[Route]:
    """One route per file, so that no path of a client ever names a file."""
    found = []
    for file in sorted(files(__name__).iterdir(), key=lambda file: file.name):
        kind = _KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if file.name == _INDEX else OPEN_BELOW + file.name
            found.append(Route(path, partial(_send, content=file.read_bytes(), kind=kind)))
    return found


async def _send(_: Request, *, content: bytes, kind: str) -> Response:
    return Response(content, headers=HEADERS, media_type=kind)
