"""tokenizer.model or spiece.model: pieces, scores and settings of SentencePiece.

The numbers of fields are those of sentencepiece_model.proto of github.com/google/sentencepiece.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats.side_files import read_bytes
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.ours.protobuf import Message, decoded, fields

_MAX_NBYTES = 1 << 26
_MAX_PIECES = 1 << 21
_MAX_PIECE_NBYTES = 1 << 9
# The largest of SentencePiece's own, nmt_nfkc_cf, takes 242 KB.
_MAX_CHARSMAP_NBYTES = 1 << 22
_TYPES = range(TokenType.NORMAL, TokenType.BYTE + 1)
_ALGORITHMS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """What the file says. Pieces have ▁ in the place of spaces."""

    texts: list[str]
    scores: array[float]
    types: bytearray
    algorithm: Literal["unigram", "bpe"]
    byte_fallback: bool
    unk_id: int
    bos_id: int | None
    eos_id: int | None
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_file(path: Path) -> SentencePieceFile:
    """FormatError, naming the piece or field, when the file is broken; UnsupportedError for
    algorithms and options that no language model is known to use."""
    source = str(path)
    raw = read_bytes(path, max_nbytes=_MAX_NBYTES)
    texts: list[str] = []
    scores = array("f")
    types = bytearray()
    parts: dict[int, bytes] = {}
    for number, kind, value in fields(raw, where=source):
        if number in (1, 2, 3, 5):
            if not isinstance(value, bytes) or kind != "bytes":
                raise FormatError(f"{source}: field {number}: expected a message, found {kind}")
            if number > 1:
                parts[number] = value
                continue
            if len(texts) == _MAX_PIECES:
                raise FormatError(f"{source}: expected up to {_MAX_PIECES:,} pieces, found more")
            text, score, type_ = _piece(value, where=f"{source}: piece {len(texts)}")
            texts.append(text)
            scores.append(score)
            types.append(type_)
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        i = next(i for i, text in enumerate(texts) if ids[text] != i)
        raise FormatError(f"{source}: pieces {i} and {ids[texts[i]]} are both {texts[i]!r:.80}")
    if types.count(TokenType.UNKNOWN) != 1:
        raise FormatError(
            f"{source}: expected one piece for what is unknown among {len(texts):,}, found "
            f"{types.count(TokenType.UNKNOWN)}"
        )
    trainer = Message(parts.get(2, b""), where=f"{source}: trainer_spec")
    normalizer = Message(parts.get(3, b""), where=f"{source}: normalizer_spec")
    denormalizer = Message(parts.get(5, b""), where=f"{source}: denormalizer_spec")
    algorithm = trainer.integer(3, "model_type", 1)
    if algorithm not in _ALGORITHMS:
        raise UnsupportedError(
            f"{source}: trainer_spec.model_type: {algorithm} is not supported; known: 1 (unigram), "
            "2 (BPE)"
        )
    for name, is_other in (
        ("trainer_spec.treat_whitespace_as_suffix", trainer.boolean(24, "suffix", False)),
        ("normalizer_spec.escape_whitespaces", not normalizer.boolean(5, "escape", True)),
        ("denormalizer_spec", bool(denormalizer.blob(2, "precompiled_charsmap"))),
    ):
        if is_other:
            raise UnsupportedError(f"{source}: {name} is set otherwise than by default")
    if _ALGORITHMS[algorithm] == "bpe" and TokenType.UNUSED in types:
        raise UnsupportedError(f"{source}: piece {types.index(TokenType.UNUSED)} of BPE is unused")
    charsmap = normalizer.blob(2, "precompiled_charsmap")
    if len(charsmap) > _MAX_CHARSMAP_NBYTES:
        raise FormatError(
            f"{source}: normalizer_spec.precompiled_charsmap: expected up to "
            f"{_MAX_CHARSMAP_NBYTES:,} bytes, found {len(charsmap):,}"
        )

    def control(text: str) -> int | None:
        i = ids.get(text)
        return i if i is not None and types[i] == TokenType.CONTROL else None

    return SentencePieceFile(
        texts=texts,
        scores=scores,
        types=types,
        algorithm=_ALGORITHMS[algorithm],
        byte_fallback=trainer.boolean(35, "byte_fallback", False),
        unk_id=types.index(TokenType.UNKNOWN),
        bos_id=control(trainer.text(46, "bos_piece", "<s>")),
        eos_id=control(trainer.text(47, "eos_piece", "</s>")),
        charsmap=charsmap,
        add_dummy_prefix=normalizer.boolean(3, "add_dummy_prefix", True),
        remove_extra_whitespaces=normalizer.boolean(4, "remove_extra_whitespaces", True),
    )


def _piece(raw: bytes, *, where: str) -> tuple[str, float, int]:
    """Text, score and type."""
    piece = Message(raw, where=where)
    text = piece.blob(1, "piece")
    if not 0 < len(text) <= _MAX_PIECE_NBYTES:
        raise FormatError(f"{where}: expected 1 to {_MAX_PIECE_NBYTES} bytes, found {len(text):,}")
    score = piece.real(2, "score")
    if not math.isfinite(score):
        raise FormatError(f"{where}: has score {score}")
    type_ = piece.integer(3, "type", TokenType.NORMAL)
    if type_ not in _TYPES:
        raise FormatError(f"{where}: has type {type_}, expected {_TYPES[0]} to {_TYPES[-1]}")
    return decoded(text, where=where), score, type_
