"""Languages of models that translate between several: tokens that name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyflow.engine.defaults import Defaults
from pyflow.engine.sources import beginning
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.specs.model_spec import ModelSpec
from pyflow.tokenizer import Tokenizer

_SPELLINGS = ("{}", "__{}__", ">>{}<<")
"""How vocabularies write a language: NLLB and mBART, M2M100, Marian."""

_NO_LANGUAGES = ("<s>", "[CLS]")


class Reader(Protocol):
    """A model whose languages are asked for."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


class Language(NamedTuple):
    """A language of a vocabulary."""

    token: int
    leads: bool
    """The token stands before the source; else the text begins with it (Marian has the former)."""


def language(tokenizer: Tokenizer, name: str) -> Language:
    """The language of this name, such as fra_Latn, fr_XX or fr. PyflowError: it has none."""
    for spelling in _SPELLINGS:
        ids = tokenizer.encode(spelling.format(name), add_special=False, parse_special=True)
        if len(ids) == 1 and tokenizer.is_control(ids[0]):
            return Language(ids[0], spelling.startswith(">>"))
    raise PyflowError(f"language {name!r:.40}: the vocabulary has no token for it")


@dataclass(frozen=True, slots=True)
class Languages:
    """Of sources and answers, as tokens; None where nothing is said."""

    source: int | None = None
    """In place of the language that the tokenizer's files put around texts."""
    lead: int | None = None
    """Before a source, for the language of the answer."""
    first: int | None = None
    """What answers begin with."""

    @classmethod
    def of(cls, model: Reader, from_language: str | None, to_language: str | None) -> Languages:
        """By the names that the vocabulary has. PyflowError: it has none; UnsupportedError: the
        model reads no source."""
        named = {"from_language": from_language, "to_language": to_language}
        given = {key: name for key, name in named.items() if name is not None}
        if not given:
            return cls()
        if model.spec.source is None:
            raise UnsupportedError(
                f"{model.name}: {', '.join(given)}: expected a model that reads a source, such as "
                "NLLB; found a decoder alone"
            )
        found = {}
        for key, name in given.items():
            if not isinstance(name, str):
                raise PyflowError(f"{key}: expected the name of a language, found {name!r:.40}")
            found[key] = language(model.tokenizer, name)
        source = found["from_language"].token if "from_language" in found else None
        token, leads = found.get("to_language", (None, False))
        return cls(source, token if leads else None, None if leads else token)

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """A source as the model reads it. PyflowError: the tokenizer's files put no language around
        texts."""
        if self.source is None:
            ids = tokenizer.encode(text)
        else:
            ids = _framed(tokenizer, text, self.source)
        return ids if self.lead is None else [self.lead, *ids]

    def check_ids(self) -> None:
        """PyflowError: a source that is given as tokens lacks what is asked for."""
        if self.source is not None or self.lead is not None:
            raise PyflowError(
                "from_language, to_language: expected sources as text, found token ids, which are "
                "taken as they are"
            )

    def beginning(self, spec: ModelSpec, defaults: Defaults) -> list[int] | None:
        """What answers begin with; None: the model reads no source."""
        start = beginning(spec, defaults)
        return start if start is None or self.first is None else [start[0], self.first]


def _framed(tokenizer: Tokenizer, text: str, language: int) -> list[int]:
    frame = tokenizer.frame()
    before, after = ([token for token, _ in part] for part in (frame.before, frame.after))
    ends = {tokenizer.eos_id}
    if (bos := tokenizer.bos_id) is not None and tokenizer.token_text(bos) in _NO_LANGUAGES:
        ends.add(bos)
    n = sum(token not in ends for token in (*before, *after))
    if n != 1:
        raise PyflowError(
            f"language of the source: expected one token for it around texts, found {n}; leave it "
            "out"
        )
    before, after = (
        [token if token in ends else language for token in part] for part in (before, after)
    )
    return [*before, *tokenizer.encode(text, add_special=False), *after]
