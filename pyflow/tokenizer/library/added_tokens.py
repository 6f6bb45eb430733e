"""Tokens beside the vocabulary proper, which the `tokenizers` library numbers itself.

It gives each new text the next id and each known text its own, whatever the files say; transformers
does the same. What the files say differently is told.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers

from pyflow.tokenizer.base.headroom import ADDED_NBYTES
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.settings import (
    Settings,
    lacking,
    tell_of_lacking,
    tell_of_left,
    tell_of_others,
)


def add_tokens(library: tokenizers.Tokenizer, settings: Settings, *, n_rows: int = 0) -> None:
    """Adds the settings' tokens to the library's tokenizer, or changes those that it has.

    n_rows: rows of the model's embedding, 0 if not known. A token that has none is left out.
    GenerationWarning: tokens were left out, or have other ids than the settings say.
    """
    source = settings.source
    nbytes = ADDED_NBYTES * (len(settings.added) + len(settings.special))
    with refusing(source, nbytes):
        known = library.get_added_tokens_decoder()
        said = {
            i: token
            for i, token in sorted(settings.added.items())
            if not (settings.gives_way and i in known)
        }
        kept, left = fitting(library, said.values(), n_rows=n_rows)
        library.add_tokens(kept)
        known = library.get_added_tokens_decoder()
        control, more = fitting(library, settings.special, n_rows=n_rows)
        lacks = lacking(settings, lambda t: t in more or library.token_to_id(t) is not None)
        ids = [library.token_to_id(token.content) for token in control]
        library.add_special_tokens(
            [
                _special(known.get(-1 if i is None else i, token))
                for i, token in zip(ids, control, strict=True)
            ]
        )
    tell_of_lacking(lacks, source=source)
    tell_of_left([*left, *more], n_rows=n_rows, source=source)
    tell_of_ids(library, [(i, token.content) for i, token in said.items()], source=source)


def fitting(
    library: tokenizers.Tokenizer,
    tokens: Iterable[tokenizers.AddedToken],
    *,
    n_rows: int,
) -> tuple[list[tokenizers.AddedToken], list[str]]:
    """The tokens that get ids below n_rows, or all if that is 0; and the texts of others."""
    kept: list[tokenizers.AddedToken] = []
    left: list[str] = []
    seen: set[str] = set()
    most = max(library.get_added_tokens_decoder(), default=-1)
    i = max(library.get_vocab_size(with_added_tokens=False), most + 1)
    for token in tokens:
        text = token.content
        if text in seen or library.token_to_id(text) is not None:
            kept.append(token)
        elif n_rows and i >= n_rows:
            left.append(text)
        else:
            seen.add(text)
            kept.append(token)
            i += 1
    return kept, left


def tell_of_ids(
    library: tokenizers.Tokenizer, said: Iterable[tuple[int, str]], *, source: str
) -> None:
    """GenerationWarning: tokens have other ids than the file says."""
    others = [
        f"{text!r:.80} has id {found}, not {i}"
        for i, text in said
        if (found := library.token_to_id(text)) not in (i, None)
    ]
    tell_of_others(others, source=source)


def _special(token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    """The token as a control token, which matches text as written and never its normalized form."""
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=True,
    )
