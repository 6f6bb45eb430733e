"""M2M100, NLLB, T5 and Marian: SentencePiece cuts texts into pieces, and a list has their ids.

The list is vocab.json, a vocabulary of CTranslate2 or Marian's YAML, or the file itself. The
languages of M2M100 follow the vocabulary, in the order of the settings' control tokens. Sources
begin with theirs, English unless somebody says otherwise; those of Marian are pieces, >>fr<<.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyflow.errors import FormatError
from pyflow.formats.vocabularies import read_vocabulary
from pyflow.tokenizer.base.settings import Settings
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.base.tokenizer import Tokenizer
from pyflow.tokenizer.ours import spm
from pyflow.tokenizer.ours.charsmap import Charsmap, Normalizer
from pyflow.tokenizer.ours.sentencepiece_file import SentencePieceFile, read_file
from pyflow.tokenizer.ours.unigram import Unigram
from pyflow.tokenizer.ours.vocab import Vocab
from pyflow.tokenizer.ours.vocab_tokenizer import VocabTokenizer

_SOURCES = ("__en__", "eng_Latn")
_END, _UNKNOWN = "</s>", "<unk>"
_CONTROL = re.compile(r"</?s>|<pad>|__\w+__|>>\w+<<|[a-z]{3}_[A-Z][a-z]{3}")
_CLASSES = dict.fromkeys(
    ("", "M2M100Tokenizer", "MarianTokenizer", "NllbTokenizer", "T5Tokenizer"), True
)


def read_translator(
    path: Path, listed: Path, settings: Settings, *, stop_ids: Iterable[int], n_rows: int
) -> Tokenizer:
    """The tokenizer of a SentencePiece file; `listed` has the ids of its pieces. Others: as in
    `from_folder`. FormatError: a file is broken. UnsupportedError: an unknown class."""
    settings.of_class(_CLASSES, f"{path.name} and {listed.name}")
    file = read_file(path)
    texts = [*file.texts] if listed == path else read_vocabulary(listed)
    n_pieces = len(texts)
    known = {*texts}
    texts += [token.content for token in settings.special if token.content not in known]
    if n_rows:
        del texts[max(n_rows, n_pieces) :]
    ids = {text: i for i, text in enumerate(texts)}
    for needed in (_END, _UNKNOWN):
        if needed not in ids:
            raise FormatError(f"{listed}: expected the token {needed}, found none")
    bytes_ = {t for t, type_ in zip(file.texts, file.types, strict=True) if type_ == TokenType.BYTE}
    types = bytearray(
        TokenType.BYTE
        if text in bytes_
        else TokenType.CONTROL
        if _CONTROL.fullmatch(text)
        else TokenType.NORMAL
        for text in texts
    )
    types[ids[_UNKNOWN]] = TokenType.UNKNOWN
    end, source = ids[_END], next((ids[text] for text in _SOURCES if text in ids), None)
    where = f"{path}: normalizer_spec.precompiled_charsmap"
    return VocabTokenizer(
        Vocab(texts, ids, bytes(types), source, end, frozenset((end, *stop_ids))),
        _Renumbered(file, [ids.get(text, ids[_UNKNOWN]) for text in file.texts]),
        add_bos=source is not None,
        add_eos=True,
        add_space_prefix="always" if file.add_dummy_prefix else "never",
        normalize=Normalizer(
            Charsmap(file.charsmap, where=where) if file.charsmap else None,
            trims=file.remove_extra_whitespaces,
            kept=set(),
        ),
        n_rows=n_rows,
        source=str(path),
    )


class _Renumbered(spm.Segmenter):
    """Gives the pieces of a file other ids."""

    def __init__(self, file: SentencePieceFile, ids: Sequence[int]) -> None:
        """ids: by a piece's number in the file."""
        kind = Unigram if file.algorithm == "unigram" else spm.ScoredMerges
        types = zip(file.texts, file.types, strict=True)
        made = {text: i for i, (text, type_) in enumerate(types) if type_ == TokenType.NORMAL}
        bytes_: list[int] = []
        if file.byte_fallback:
            bytes_ = spm.byte_ids({text: i for i, text in enumerate(file.texts)}, source="bytes")
        self._inner = kind(made, file.scores, user_defined=set(), bytes_=bytes_, unk=file.unk_id)
        self._to = ids

    def encode(self, text: str) -> list[int]:
        return [self._to[i] for i in self._inner.encode(text)]

    def _encode_segment(self, segment: str) -> list[int]:
        return self.encode(segment)
