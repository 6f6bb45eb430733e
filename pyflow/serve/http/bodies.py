"""Bodies of requests: read with limits, and converted to structs."""

from __future__ import annotations

import asyncio
import re
from typing import Any, ClassVar, TypeVar

import msgspec
from starlette.types import Receive

from pyflow.serve.errors import ApiError, bad_request
from pyflow.serve.http.guard import too_large
from pyflow.serve.settings import MAX_BODY


class Body(msgspec.Struct, kw_only=True):
    """A request; `null` is the same as leaving a field out."""

    model: str | None = None

    harmless: ClassVar[frozenset[str]] = frozenset()
    """Fields that change nothing here."""
    refused: ClassVar[dict[str, str]] = {}
    """Fields that would change the answer and cannot be obeyed, with what to do instead."""


B = TypeVar("B", bound=Body)


class GoneError(Exception):
    """The client has gone."""


async def read(receive: Receive, timeout_s: float) -> bytes:
    """The whole body. ApiError: it is too large or too slow; GoneError."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY:
                    raise too_large(size)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {timeout_s:g} s") from None


def decode(raw: bytes, kind: type[B], *, strict: bool) -> tuple[B, list[str]]:
    """A struct of this kind, and the fields that it does not know.

    ApiError: the body is no JSON, or a field is wrong, refused, or, if strict, unknown.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise bad_request(f"the body: expected a JSON object: {error}") from None
    known = {*kind.__struct_encode_fields__}
    # What nobody reads is not decoded: eight megabytes of it would stop the loop for a second.
    others = known | kind.refused.keys()
    given = {name: _value(name, value) for name, value in fields.items() if name in others}
    given = {name: value for name, value in given.items() if value is not None}
    for name, advice in kind.refused.items():
        if given.get(name, _EMPTY) not in _NOTHING:
            raise bad_request(f"{name}: is not supported; {advice}", name)
    others |= kind.harmless
    unknown = [name for name, v in fields.items() if name not in others and bytes(v) != b"null"]
    if unknown and strict:
        raise bad_request(f"{unknown[0]!r:.80}: this server knows no such field", unknown[0])
    try:
        return msgspec.convert(given, kind), unknown
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong(str(error)) from None


def _value(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        reason = f"expected a JSON value: {error}"
        if "out of range" in reason:
            reason = "expected numbers up to 1.7e308, found a larger one"
        raise bad_request(f"{name}: {reason}", name) from None


_EMPTY: list[object] = []
_NOTHING: tuple[object, ...] = ([], {}, "", False)


def _wrong(message: str) -> ApiError:
    """From msgspec's "Expected `int`, got `str` - at `$.n`" to a message that begins with n."""
    text, _, path = message.partition(" - at ")
    where = path.strip("`").removeprefix("$").lstrip(".")
    if missing := re.search("missing required field `(.*)`", text):
        where = f"{where}.{missing[1]}".lstrip(".")
        text = "expected a value, found none"
    name = re.split(r"[.\[]", where)[0] or None
    text = text[:1].lower() + text[1:].replace("`", "")
    return bad_request(f"{where or 'the body'}: {text}", name)
