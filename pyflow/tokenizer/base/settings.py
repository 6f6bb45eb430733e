"""Settings of a folder's tokenizer apart from its vocabulary: tokenizer_config.json, and in older
folders special_tokens_map.json and added_tokens.json."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import tokenizers

from pyflow.errors import FormatError, GenerationWarning, UnsupportedError
from pyflow.formats.side_files import is_there, read_json

_MAX_NBYTES = 1 << 24
# The library compares each token that it adds with all before: 16,384 take a second.
_MAX_TOKENS = 1 << 14
_MAX_CHARS = 1 << 10
_SHOWN = 4  # tokens in a warning
T = TypeVar("T", bound="_Named")
K = TypeVar("K")
_ID = re.compile(r"-?[0-9]{1,20}")

Role = Literal["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
ROLES: tuple[Role, ...] = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class _Token(msgspec.Struct):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool | None = None


_Tokens: TypeAlias = dict[str, _Token | str]


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
    added: Mapping[int, tokenizers.AddedToken]
    """By the ids that the files say."""
    gives_way: bool
    """Whether `added` is left out where the vocabulary has added tokens of these ids."""
    roles: Mapping[Role, tokenizers.AddedToken]
    further: tuple[tokenizers.AddedToken, ...]
    """Control tokens without a role."""
    given: frozenset[Role] = frozenset()
    """The roles that the files set."""

    @property
    def named(self) -> dict[Role, str]:
        """The texts of the roles."""
        return {role: token.content for role, token in self.roles.items()}

    @property
    def special(self) -> list[tokenizers.AddedToken]:
        """All control tokens, each once, in the order in which `transformers` adds them."""
        roles = (self.roles[role] for role in ROLES if role in self.roles)
        tokens: dict[str, tokenizers.AddedToken] = {}
        for token in (*roles, *self.further):
            tokens.setdefault(token.content, token)
        return [*tokens.values()]

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
        tokens = {role: _control(text) for role, text in default.items()}
        return replace(self, roles={**tokens, **self.roles})


def read_settings(folder: Path) -> Settings:
    """The settings as `transformers` 5.24 reads them; empty if the folder has no such files.

    FormatError: a file is broken, or names too many tokens or too long ones.
    """
    path = folder / "tokenizer_config.json"
    config, source = _read(path, _Config), str(path)
    old = config.added_tokens_decoder is None
    path_of_map = folder / "special_tokens_map.json"
    more = _read(path_of_map, _Named) if old else _Named()
    roles: dict[Role, tokenizers.AddedToken] = {}
    for role in ROLES:
        token = getattr(more, f"{role}_token") or getattr(config, f"{role}_token")
        if token:
            roles[role] = _control(token)
    further = _further(config, more, _own(path, marked=True), _own(path_of_map) if old else {})
    special = {token.content for token in (*roles.values(), *further)}
    added: dict[int, tokenizers.AddedToken] = {}
    for key, token in (config.added_tokens_decoder or {}).items():
        added[_id(key, source=source)] = _added(token, special=token.content in special)
    names = folder / "added_tokens.json"
    if old and is_there(names):
        for text, i in read_json(names, dict[str, int], max_nbytes=_MAX_NBYTES).items():
            added[i] = _added(_Token(text), special=text in special)
    _check_bounds([*added.values(), *further], source=source)
    return Settings(source, config, added, old, roles, further, frozenset(roles))


def _further(
    config: _Named, more: _Named, own: _Tokens, more_own: _Tokens
) -> tuple[tokenizers.AddedToken, ...]:
    """Control tokens that have no role of ours, first those with a name, then those of lists.

    config, more: tokenizer_config.json and special_tokens_map.json. own: their tokens with names of
    their own, such as image_token. Which list hides which is as in `transformers`.
    """
    extra, rest = config.extra_special_tokens, config.additional_special_tokens
    if rest is not None and not extra:
        extra, rest = rest, None
    # Names that are plain text in tokenizer_config.json, or keys of a dict, win and come last.
    names: _Tokens = {k: token for k, token in own.items() if not isinstance(token, str)}
    late: _Tokens = {k: token for k, token in own.items() if isinstance(token, str)}
    if isinstance(extra, dict):
        late |= extra
        extra = None
    if isinstance(more.extra_special_tokens, dict):
        late |= more.extra_special_tokens
        extra = None
    elif more.extra_special_tokens is not None:
        extra = [*(extra or ()), *more.extra_special_tokens]
    if extra is None:
        extra = more.additional_special_tokens or rest or []
    return tuple(
        _control(token) for token in (*(names | more_own | late).values(), *extra) if token
    )


def _own(path: Path, *, marked: bool = False) -> _Tokens:
    """Tokens under names of their own, such as image_token. marked: objects count only if their
    __type says that they are tokens."""
    found: _Tokens = {}
    for key, value in _read_any(path).items():
        if not key.endswith("_token") or key.removesuffix("_token") in ROLES:
            continue
        if isinstance(value, str):
            found[key] = value
        elif isinstance(value, dict) and "content" in value:
            if marked and value.get("__type") != "AddedToken":
                continue
            with suppress(msgspec.ValidationError):  # another kind of object
                found[key] = msgspec.convert(value, _Token)
    return found


def lacking(settings: Settings, has: Callable[[str], bool]) -> list[str]:
    """What the files call the beginning or the end of a text, and the vocabulary lacks; has:
    whether it has a text."""
    given = [role for role in ROLES[:2] if role in settings.given]
    named = settings.named
    return [f"{role}_token {named[role]!r:.80}" for role in given if not has(named[role])]


def tell_of_lacking(tokens: list[str], *, source: str) -> None:
    """GenerationWarning, if there are any: the vocabulary lacks these tokens."""
    if tokens:
        warnings.warn(
            f"{source}: {_listed(tokens)}: not in the vocabulary, so the model has not learned it; "
            "fetch the tokenizer's files again",
            GenerationWarning,
            stacklevel=2,
        )


def tell_of_left(texts: list[str], *, n_rows: int, source: str) -> None:
    """GenerationWarning, if there are any: these tokens have ids past the embedding."""
    if texts:
        warnings.warn(
            f"{source}: {_listed(map(repr, texts))} past the embedding of {n_rows} rows: left out, "
            "not in the vocabulary",
            GenerationWarning,
            stacklevel=2,
        )


def tell_of_others(others: list[str], *, source: str) -> None:
    """GenerationWarning, if there are any: tokens have other ids than a file says."""
    if others:
        warnings.warn(f"{source}: {_listed(others)}", GenerationWarning, stacklevel=2)


def _listed(texts: Iterable[str]) -> str:
    """The first of these texts, and how many more there are."""
    shown = [f"{text:.80}" for text in texts]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _check_bounds(tokens: Collection[tokenizers.AddedToken], *, source: str) -> None:
    if len(tokens) > _MAX_TOKENS:
        raise FormatError(
            f"{source}: expected up to {_MAX_TOKENS:,} added tokens, found {len(tokens):,}"
        )
    longest = max((token.content for token in tokens), key=len, default="")
    if len(longest) > _MAX_CHARS:
        raise FormatError(
            f"{source}: token {longest!r:.40}: expected up to {_MAX_CHARS:,} characters, found "
            f"{len(longest):,}"
        )


def _control(token: _Token | str) -> tokenizers.AddedToken:
    return _added(_Token(token) if isinstance(token, str) else token, special=True)


def _added(token: _Token, *, special: bool) -> tokenizers.AddedToken:
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
    return read_json(path, kind, max_nbytes=_MAX_NBYTES) if is_there(path) else kind()


def _read_any(path: Path) -> dict[str, Any]:
    return read_json(path, dict[str, Any], max_nbytes=_MAX_NBYTES) if is_there(path) else {}


def _id(key: str, *, source: str) -> int:
    if not _ID.fullmatch(key):
        raise FormatError(f"{source}: added_tokens_decoder: expected a token id, found {key!r:.80}")
    return int(key)
