"""Settings of a folder's tokenizer apart from its vocabulary: tokenizer_config.json, and in older
folders special_tokens_map.json and added_tokens.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import tokenizers

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats.side_files import read_json
from pyflow.tokenizer.base.headroom import ADDED_NBYTES
from pyflow.tokenizer.base.library_errors import refusing

_MAX_NBYTES = 1 << 24
T = TypeVar("T", bound="_Named")
K = TypeVar("K")

Role = Literal["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
ROLES: tuple[Role, ...] = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class _Token(msgspec.Struct):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool | None = None


class _Named(msgspec.Struct):
    """Tokens with a role. A file gives each as an object or as plain text."""

    bos_token: _Token | str | None = None
    eos_token: _Token | str | None = None
    unk_token: _Token | str | None = None
    sep_token: _Token | str | None = None
    pad_token: _Token | str | None = None
    cls_token: _Token | str | None = None
    mask_token: _Token | str | None = None
    additional_special_tokens: list[_Token | str] | None = None
    extra_special_tokens: list[_Token | str] | dict[str, _Token | str] | None = None


class _Template(msgspec.Struct):
    name: str
    template: str


class _Config(_Named):
    added_tokens_decoder: dict[str, _Token] | None = None
    chat_template: str | list[_Template] | None = None
    tokenizer_class: str | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    add_prefix_space: bool | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    legacy: bool | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Tokens by role, tokens to add to the vocabulary, and options of old tokenizer classes."""

    source: str
    config: _Config
    added: dict[int, tokenizers.AddedToken]
    named: dict[Role, str]
    special: tuple[str, ...]
    """All control tokens, also those without a role."""

    @property
    def tokenizer_class(self) -> str:
        """Name of the Python class without "Fast", which makes no difference. May be empty."""
        return (self.config.tokenizer_class or "").removesuffix("Fast")

    def of_class(self, known: Mapping[str, K], files: str) -> K:
        """What is known of the Python class, for a tokenizer in these files; UnsupportedError if it
        is another class."""
        if self.tokenizer_class not in known:
            raise UnsupportedError(
                f"{self.source}: tokenizer_class: {self.tokenizer_class} is not supported with "
                f"{files}; known: {', '.join(filter(None, known))}"
            )
        return known[self.tokenizer_class]

    def with_roles(self, default: Mapping[Role, str]) -> Settings:
        """A copy with default tokens for roles that the files do not set."""
        special = dict.fromkeys((*self.special, *default.values()))
        return replace(self, named={**default, **self.named}, special=tuple(special))


def read_settings(folder: Path) -> Settings:
    """The settings as `transformers` reads them; empty if the folder has no such files."""
    path = folder / "tokenizer_config.json"
    config = _read(path, _Config)
    source = str(path)
    old = config.added_tokens_decoder is None
    more = _read(folder / "special_tokens_map.json", _Named) if old else _Named()
    named: dict[Role, str] = {}
    for role in ROLES:
        token = getattr(more, f"{role}_token") or getattr(config, f"{role}_token")
        if token:
            named[role] = _content(token)
    special = list(named.values())
    for listed in (more, config):
        for tokens in (listed.additional_special_tokens, listed.extra_special_tokens):
            found = tokens.values() if isinstance(tokens, dict) else tokens or ()
            special += map(_content, found)
    added: dict[int, tokenizers.AddedToken] = {}
    for key, token in (config.added_tokens_decoder or {}).items():
        added[_id(key, source=source)] = _added(token, special=token.content in special)
    names = folder / "added_tokens.json"
    if old and names.exists():
        for text, i in read_json(names, dict[str, int], max_nbytes=_MAX_NBYTES).items():
            added[i] = _added(_Token(text), special=text in special)
    return Settings(source, config, added, named, tuple(dict.fromkeys(special)))


def add_tokens(library: tokenizers.Tokenizer, settings: Settings) -> None:
    """Adds the settings' tokens to the library's tokenizer, or changes those that it has.

    FormatError if a token would get another id than its settings say.
    """
    known = library.get_added_tokens_decoder()
    with refusing(settings.source, ADDED_NBYTES * len(settings.added)):
        for i, token in sorted(settings.added.items()):
            if known.get(i) != token:
                library.add_tokens([token])
            if (found := library.token_to_id(token.content)) != i:
                raise FormatError(
                    f"{settings.source}: added token {token.content!r:.80} has id {i}, "
                    f"expected {found}, its place in the vocabulary"
                )
        known = library.get_added_tokens_decoder()
        for text in settings.special:
            # A token that the vocabulary lacks cannot occur.
            at = library.token_to_id(text)
            if at is not None:
                token = known.get(at, tokenizers.AddedToken(text))
                library.add_special_tokens([_added(token, special=True)])


def _added(token: _Token | tokenizers.AddedToken, *, special: bool) -> tokenizers.AddedToken:
    special = special or bool(token.special)
    normalized = token.normalized if token.normalized is not None else True
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=normalized and not special,
        special=special,
    )


def _read(path: Path, kind: type[T]) -> T:
    return read_json(path, kind, max_nbytes=_MAX_NBYTES) if path.exists() else kind()


def _content(token: _Token | str) -> str:
    return token if isinstance(token, str) else token.content


def _id(key: str, *, source: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise FormatError(f"{source}: added_tokens_decoder: expected a token id, found {key!r:.80}")
    return int(key)
