"""The tokenizer and chat template of a folder as a GGUF file's metadata.

GGUF can express less than a tokenizer.json. So the metadata is read again, and must give the
folder's ids for a trial text of many scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

import numpy as np

from pyflow.chat import checkpoint as chat
from pyflow.chat.template import KEY as TEMPLATE
from pyflow.errors import UnsupportedError
from pyflow.formats.side_files import parse_json
from pyflow.gguf_export.metadata import Entry
from pyflow.gguf_export.vocab import Library, Vocab, of_library, of_sentencepiece
from pyflow.specs import Description
from pyflow.tokenizer import NoTokenizerError, Tokenizer, from_checkpoint, from_metadata
from pyflow.tokenizer.base.settings import Role, Settings, read_settings
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.library.library_tokenizer import LibraryTokenizer
from pyflow.tokenizer.ours.gguf import NO_VOCAB

_START = "tokenizer.ggml."
_IDS: dict[Role, str] = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # as GGUF spells it
    "pad": "padding",
    "mask": "mask",
}
# Added tokens that the trial text includes.
_N_OWN = 256
# Keys for further tokens that end a text, if readers do not know them by name.
_STOPS = ("eot", "eom")
# Scripts, digits, spaces, contractions, marks, emoji.
_TRIAL = (
    "Hello, World!  It's 1234567.89 o'clock; we'RE  HERE'LL\n\n\n  x = [1, 22, 333];\t\tdef f(a):"
    "\r\n return a**2 # ok\n Ärger, naïve café, Œuvre, ſtraße. Привет, мир! Γειά σου. 你好，世界！"
    "こんにちは、カタカナ。안녕하세요 שלום עולם مرحبا بالعالم ١٢٣ नमस्ते दुनिया สวัสดีชาวโลก ½ ² Ⅷ ①"
    " \U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\u200d\U0001f467  \u00a0\u2003\u3000x\u200b"
    " \u0301e \ufeff ~`^|<>=+$€ ''' \"\" ... !!?? --- ___ /* */ <a href='x'> http://x.y/z?q=1&r=2 '"
    "  \n \n   end    "
)


def tokenizer_metadata(description: Description) -> dict[str, Entry]:
    """All keys of tokenizer and chat template; without a tokenizer the one key that says so.

    FormatError, ShapeError: as when the tokenizer is loaded. UnsupportedError: names what GGUF
    cannot express.
    """
    checkpoint, n_rows = description.checkpoint, description.spec.n_vocab
    try:
        tokenizer = from_checkpoint(checkpoint, n_rows=n_rows, stop_ids=description.stop_ids)
    except NoTokenizerError:
        return {f"{_START}model": NO_VOCAB}
    folder = checkpoint.path.parent
    settings = read_settings(folder)
    vocab = _vocab(tokenizer, description, settings)
    entries: dict[str, Entry] = {
        "tokens": vocab.texts,
        "token_type": np.frombuffer(bytes(vocab.types), np.uint8).astype(np.int32),
        **vocab.entries,
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        **_ids(tokenizer, description, settings, vocab),
    }
    found = {f"{_START}{key}": value for key, value in entries.items()}
    _add_stops(found, tokenizer, description)
    _check(found, tokenizer, str(folder))
    if (template := chat.text_of(checkpoint, description.template)) is not None:
        found[TEMPLATE] = template[1]
    return found


def _vocab(tokenizer: Tokenizer, description: Description, settings: Settings) -> Vocab:
    folder, n_rows = description.checkpoint.path.parent, description.spec.n_vocab
    path = folder / "tokenizer.model"
    if isinstance(tokenizer, LibraryTokenizer):
        library = parse_json(tokenizer.state().encode(), Library, source=str(folder))
        if not path.exists() or library.model.type != "BPE" or not library.model.byte_fallback:
            return of_library(library, n_rows=n_rows, source=str(folder))
        return of_sentencepiece(path, settings, n_rows=n_rows)
    if not path.exists():
        path = folder / "spiece.model"
    return of_sentencepiece(path, settings, n_rows=n_rows)


def _ids(
    tokenizer: Tokenizer, description: Description, settings: Settings, vocab: Vocab
) -> dict[str, Entry]:
    """Ids of special tokens, from tokenizer_config.json's texts or config.json's ids."""
    ids = {text: i for i, text in enumerate(vocab.texts)}
    found: dict[str, Entry] = {}
    for role, name in _IDS.items():
        token = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}.get(role)
        if token is None:
            token = ids.get(settings.named.get(role, ""))
        if token is None:
            said = description.source.get(f"{role}_token_id")
            first = said[0] if isinstance(said, list) and said else said
            token = first if type(first) is int and 0 <= first < len(ids) else None
        if token is not None:
            found[f"{name}_token_id"] = token
    return found


def _add_stops(found: dict[str, Entry], tokenizer: Tokenizer, description: Description) -> None:
    """Adds keys for tokens that end a text, if readers do not know them by their texts."""
    path = description.checkpoint.path
    known = from_metadata(found, source=f"{path} as GGUF").stop_ids
    left = sorted(tokenizer.stop_ids - known)
    if len(left) > len(_STOPS):
        texts = ", ".join(repr(tokenizer.token_text(i)) for i in left)
        raise UnsupportedError(
            f"{path}: expected up to {len(_STOPS)} end tokens, as GGUF has keys, found {texts:.200}"
        )
    for name, token in zip(_STOPS, left, strict=False):
        found[f"{_START}{name}_token_id"] = token


def _check(found: Mapping[str, object], tokenizer: Tokenizer, source: str) -> None:
    """UnsupportedError: a reader of the metadata would give other ids."""
    other = from_metadata(found, source=f"{source} as GGUF")
    ends = [tokenizer.bos_id] * tokenizer.add_bos + [tokenizer.eos_id] * tokenizer.add_eos
    if tokenizer.encode("") != ends:
        raise UnsupportedError(
            f"{source}: texts begin and end with tokens {tokenizer.encode('')}; GGUF can only add "
            f"{ends}, the bos_token and eos_token of tokenizer_config.json"
        )
    if missing := tokenizer.stop_ids - other.stop_ids:
        raise UnsupportedError(f"{source}: tokens {sorted(missing)} end texts, but not in GGUF")
    own = np.flatnonzero(np.asarray(found[f"{_START}token_type"]) == TokenType.USER_DEFINED)
    # Readers of GGUF take </s> for control wherever it is, also where it is HTML.
    texts = [other.token_text(i) for i in own.tolist() if not other.is_control(i)]
    among = "".join(f"x{text}y {text}" for text in texts[:_N_OWN])
    for text in ("", "a", " a", among, *_TRIAL.split("\n"), _TRIAL):
        ours, theirs = tokenizer.encode(text), other.encode(text)
        if ours != theirs:
            pairs = enumerate(zip_longest(ours, theirs))
            at = next(i for i, (x, y) in pairs if x != y)
            where = tokenizer.decode(ours[max(at - 2, 0) : at + 3])
            raise UnsupportedError(
                f"{source}: tokenizer: read from GGUF it would encode {where!r:.60} as "
                f"{theirs[at : at + 3]}, not {ours[at : at + 3]}"
            )
