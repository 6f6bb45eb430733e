"""Requests to the hub and to other servers, through the client of the huggingface_hub library.

The library gives the client (proxies, certificates, offline mode), the endpoint and the token.
Redirects are followed here, for two reasons: the token goes to the endpoint's origin alone, and the
headers of the hop before a storage server describe the file.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from pyflow.errors import PyflowError
from pyflow.formats.side_files import parse_json
from pyflow.text import printable

T = TypeVar("T")

_GOOD = frozenset({200, 206})
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_TRIES = 5
_LONGEST_WAIT_S = 120
_MOST_HOPS = 10
_MOST_JSON = 64 << 20  # bytes; the listing of a large repository has some megabytes
_PORTS = {"http": 80, "https": 443}
# Nothing is left of the limit for t seconds: "api";r=0;t=55
_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")


class UnreachableError(PyflowError):
    """No answer: no network, a proxy, a certificate, or offline mode."""


class CutError(UnreachableError):
    """The connection broke while an answer was being read."""


class RefusedError(PyflowError):
    """A server answered with an error status."""

    def __init__(self, url: str, status: int, headers: Mapping[str, str], message: str) -> None:
        super().__init__(message)
        self.url = url
        self.status = status
        self.code = headers.get("x-error-code", "")
        self.message = headers.get("x-error-message", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with a good status, and where it came from."""

    response: Any
    url: str
    by_endpoint: Mapping[str, str]
    """The headers of the last hop at the first URL's server, where the hub describes the file."""


@dataclass(frozen=True, slots=True)
class Session:
    """Where the hub is, and the token that only the hub may see."""

    endpoint: str
    token: str | None = field(repr=False)
    told: Callable[[str], None] = lambda _: None
    """Gets a line before each wait."""

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).hostname or self.endpoint

    @contextmanager
    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        stops_at_link: bool = False,
    ) -> Iterator[Answer]:
        """The answer to a request, after redirects; its body is still to be read.

        stops_at_link: do not follow a redirect that has the file's X-Linked-Etag.
        Waits and tries again after 429 and errors of the server. RefusedError for other statuses
        than 200 and 206, UnreachableError without an answer.
        """
        with ExitStack() as stack:
            for again in range(_TRIES):
                try:
                    answer = self._follow(stack, method, url, headers or {}, stops_at_link)
                except CutError:
                    if again == _TRIES - 1:
                        raise
                    pause(2.0**again)
                    continue
                response = answer.response
                if response.status_code in _GOOD or (stops_at_link and _is_redirect(response)):
                    break
                wait = _wait_s(response.headers, again)
                last = again == _TRIES - 1 or wait > _LONGEST_WAIT_S
                if response.status_code not in _TRANSIENT or last:
                    raise self._refused(answer, wait)
                stack.close()
                self.told(
                    f"{urlsplit(answer.url).hostname} answers {response.status_code}; waiting"
                    f" {wait:.0f} s"
                )
                pause(wait)
            with self.translated():
                yield answer

    def json(self, url: str, kind: type[T]) -> T:
        """The JSON at an URL of the hub; FormatError if it is no such JSON."""
        raw = bytearray()
        with self.open("GET", url) as answer:
            for chunk in answer.response.iter_bytes():
                raw += chunk
                if len(raw) > _MOST_JSON:
                    break
        return parse_json(bytes(raw), kind, source=url)

    def _follow(
        self,
        stack: ExitStack,
        method: str,
        url: str,
        headers: Mapping[str, str],
        stops_at_link: bool,
    ) -> Answer:
        from huggingface_hub import constants, get_session

        first, by_endpoint = url, {}
        sent = {"accept-encoding": "identity", "user-agent": "pyflow", **headers}
        for _ in range(_MOST_HOPS):
            own = self.token is not None and origin(url) == origin(self.endpoint)
            authorization = {"authorization": f"Bearer {self.token}"} if own else {}
            with self.translated():
                response = stack.enter_context(
                    get_session().stream(
                        method,
                        url,
                        headers=sent | authorization,
                        follow_redirects=False,
                        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                    )
                )
            if origin(url) == origin(first):
                by_endpoint = dict(response.headers)
            is_link = stops_at_link and "x-linked-etag" in response.headers
            if not _is_redirect(response) or is_link:
                return Answer(response, url, by_endpoint)
            url = _target(url, response.headers["location"])
            stack.close()
        raise UnreachableError(f"{printable(first)}: more than {_MOST_HOPS} redirects")

    def _refused(self, answer: Answer, wait: float) -> RefusedError:
        status, headers = answer.response.status_code, answer.response.headers
        host = urlsplit(answer.url).hostname
        if status == 429:
            text = f"{host}: too many requests (429); try again in {wait:.0f} s"
            if self.token is None and host == self.host:
                text += ", or set HF_TOKEN: the limit is higher with a token"
        elif status in _TRANSIENT:
            text = f"{host}: the server has a fault ({status}); run the same command later"
        else:
            told = self.hide(headers.get("x-error-message", ""))
            where = f"{host}{printable(urlsplit(answer.url).path)}"
            told = f": {printable(told)}" if told else ""
            text = f"{where}: answers {status}{told}; check the name"
        return RefusedError(answer.url, status, headers, text)

    def hide(self, text: str) -> str:
        """The text without the token, which a server could repeat."""
        return text.replace(self.token, "...") if self.token else text

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turns the client's errors into UnreachableError, or CutError if trying again may help."""
        http = _library()
        try:
            yield
        except http.ProxyError:
            raise UnreachableError(
                f"{self.host}: the proxy does not let the request through; check HTTPS_PROXY,"
                " HTTP_PROXY and NO_PROXY"
            ) from None
        except (http.ConnectError, http.ConnectTimeout) as error:
            reason = str(error).strip() or "no answer"
            advice = "the network and the proxy"
            if os.environ.get("HF_ENDPOINT"):
                advice += ", and HF_ENDPOINT"
            if "CERTIFICATE" in reason.upper():
                advice = "the clock, and SSL_CERT_FILE"
            raise UnreachableError(
                f"{self.endpoint}: cannot be reached: {printable(reason)}; check {advice};"
                " what was pulled before runs without"
            ) from None
        except (http.UnsupportedProtocol, http.InvalidURL):
            raise UnreachableError(
                f"HF_ENDPOINT={printable(self.endpoint)}: expected a URL that begins with https://"
            ) from None
        except http.TransportError as error:
            reason = str(error).strip() or type(error).__name__
            raise CutError(
                f"{self.host}: the connection broke: {printable(self.hide(reason))}; run the same"
                " command again: it goes on where it stopped"
            ) from None
        except OSError as error:
            if type(error).__name__ != "OfflineModeIsEnabled":
                raise
            raise UnreachableError(
                f"{self.host}: HF_HUB_OFFLINE forbids the network; unset it, or take what is"
                " there ('pyflow list')"
            ) from None


def session(told: Callable[[str], None]) -> Session:
    """The hub that HF_ENDPOINT names, with the token of HF_TOKEN or of `hf auth login`."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise PyflowError(
            "HF_TOKEN or the token file: has characters that no token has; set it again, or run"
            " 'hf auth login'"
        )
    return Session(constants.ENDPOINT, token, told)


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, server and port. A token for one origin is no other's business."""
    parts = urlsplit(url)
    return (parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0))


def pause(seconds: float) -> None:
    """Waits before another try."""
    time.sleep(seconds)


def _is_redirect(response: Any) -> bool:
    return 300 <= response.status_code < 400 and "location" in response.headers


def _target(url: str, location: str) -> str:
    """Where a redirect leads; UnreachableError if that is no URL, or less safe."""
    target = urljoin(url, location)
    try:
        scheme, host, _ = origin(target)
    except ValueError:
        scheme = host = ""
    if scheme not in _PORTS or not host or (scheme == "http" and url.startswith("https:")):
        raise UnreachableError(
            f"{urlsplit(url).hostname}: redirects to {printable(target)[:80]}, expected https://"
        )
    return target


def _wait_s(headers: Mapping[str, str], again: int) -> float:
    """Seconds until another try: as the server says, or 1, 2, 4, 8."""
    after = headers.get("retry-after", "").strip()
    if after.isdecimal():
        return float(after)
    limit = _LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1] if limit else 2**again)


def _library() -> Any:
    """The module of the client, which depends on the version of huggingface_hub: its errors."""
    from huggingface_hub import get_session

    return sys.modules[type(get_session()).__module__.partition(".")[0]]
