"""Names of models that are elsewhere: a repository of the hub, or the URL of a single file.

hf:ORG/REPO[@REVISION][:FILE or QUANT]
https://huggingface.co/ORG/REPO[/tree|blob|resolve/REVISION[/FILE]]
https://HOST/PATH/FILE.gguf
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from pyflow.errors import FormatError
from pyflow.text import printable

PREFIX = "hf:"
FILE_KINDS = (".gguf", ".safetensors")
_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_PAGES = ("tree", "blob", "resolve", "raw")
_FORM = "ORG/REPO, ORG/REPO:QUANT, ORG/REPO:FILE or ORG/REPO@REVISION"
# As the hub itself allows them; "--" and ".." would leave the repository's folder in the cache.
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub, and what of it is meant."""

    repo: str
    """ORG/REPO; old repositories have no ORG."""
    revision: str | None = None
    """A branch, a tag or a commit; None: main."""
    wanted: str | None = None
    """A quant such as Q4_K_M, or a file; None: what fits."""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repo}{revision}{f':{self.wanted}' if self.wanted else ''}"


@dataclass(frozen=True, slots=True)
class FileUrl:
    """A single file at some server that is no hub."""

    url: str

    @property
    def file(self) -> str:
        """The file's name."""
        return unquote(urlsplit(self.url).path).rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return self.url


def parse(text: str) -> HubName | FileUrl | None:
    """The name that `text` is, or None if it has neither hf: nor a URL's beginning.

    FormatError: it begins like such a name and is none.
    """
    if re.match(r"https?://", text, re.IGNORECASE):
        return _parse_url(text)
    if text.lower().startswith(tuple(f"{host}/" for host in _HOSTS)):
        return _parse_url(f"https://{text}")
    if text[: len(PREFIX)].lower() == PREFIX:
        return parse_repo(text[len(PREFIX) :].removeprefix("//"), text)
    return None


def parse_repo(text: str, shown: str | None = None) -> HubName:
    """The name in ORG/REPO[@REVISION][:FILE or QUANT]; FormatError names `shown`."""
    rest, colon, wanted = text.partition(":")
    repo, at, revision = rest.partition("@")
    name = HubName(repo, revision or None, wanted or None)
    if (colon and not wanted) or (at and not revision):
        raise _malformed(shown or text, "nothing after ':' or '@'")
    return _checked(name, shown or text)


def is_repo(text: str) -> bool:
    """Whether `text` is ORG/REPO, and perhaps more, without hf: in front."""
    try:
        return "/" in parse_repo(text).repo
    except FormatError:
        return False


def is_safe(path: str) -> bool:
    """Whether a relative path with / stays in its folder and can be printed."""
    return path.isprintable() and not any(
        part in ("", ".", "..") or "\\" in part or "\0" in part for part in path.split("/")
    )


def _checked(name: HubName, shown: str) -> HubName:
    parts = name.repo.split("/")
    bad = any(
        _PART.fullmatch(part) is None or "--" in part or ".." in part or part.endswith(".git")
        for part in parts
    )
    if bad or len(parts) > 2:
        raise _malformed(shown, repr(printable(name.repo)))
    for part in (name.revision, name.wanted):
        if part is not None and not is_safe(part):
            raise _malformed(shown, repr(printable(part)))
    return name


def _malformed(shown: str, found: str) -> FormatError:
    return FormatError(f"{printable(shown)}: expected {_FORM}, found {found}")


def _parse_url(text: str) -> HubName | FileUrl:
    # A port that is no number is a ValueError too.
    try:
        url = urlsplit(text)
        host = url.hostname
        own = _endpoint()
        is_hub = host in _HOSTS or (url.scheme, host, url.port) == (
            own.scheme,
            own.hostname,
            own.port,
        )
    except ValueError as error:
        raise FormatError(f"{printable(text)}: is no URL: {error}") from None
    if url.username is not None or url.password is not None:
        raise FormatError(
            f"{url.scheme}://...@{host}: expected a URL without a user name or password"
        )
    if not host:
        raise FormatError(f"{printable(text)}: expected the name of a server after ://")
    if is_hub:
        return _parse_page(text, url.path)
    found = FileUrl(urlunsplit(url._replace(fragment="")))
    if not found.file.lower().endswith(FILE_KINDS) or not is_safe(found.file):
        raise FormatError(
            f"{printable(text)}: expected the URL of a {' or '.join(FILE_KINDS)} file, or a page"
            " of huggingface.co"
        )
    return found


def _parse_page(text: str, path: str) -> HubName:
    """The name in the path of a hub's page, whose parts may be percent-encoded."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    page = next((i for i in (1, 2) if i < len(parts) and parts[i] in _PAGES), None)
    if page is None:
        return parse_repo("/".join(parts), text)
    revision = parts[page + 1] if len(parts) > page + 1 else None
    wanted = "/".join(parts[page + 2 :])
    return _checked(HubName("/".join(parts[:page]), revision, wanted or None), text)


def _endpoint() -> SplitResult:
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT)
