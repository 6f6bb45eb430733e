"""tokenizer.model or spiece.model: pieces, scores and settings of SentencePiece.

Field numbers are from sentencepiece_model.proto in github.com/google/sentencepiece.
"""

from __future__ import annotations

import itertools
import math
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats.side_files import read_bytes
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.ours.protobuf import Message, decoded, fields
from pyflow.tokenizer.ours.vocab import ids_of

_MAX_NBYTES = 1 << 26
_MAX_PIECES = 1 << 21
_MAX_PIECE_NBYTES = 1 << 9
# SentencePiece's largest built-in map, nmt_nfkc_cf, has 242 KB.
_MAX_CHARSMAP_NBYTES = 1 << 22
_PIECE, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5  # fields of ModelProto
_TYPES = range(TokenType.NORMAL, TokenType.BYTE + 1)
_ALGORITHMS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """The contents of the file. Pieces contain ▁ instead of spaces."""

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
    """FormatError, naming the piece or field, if the file is broken; UnsupportedError for
    algorithms and options that no known language model uses."""
    source = str(path)
    texts, scores, types, parts = _read_fields(path)
    _check_pieces(texts, types, source=source)
    trainer = Message(parts.get(_TRAINER, b""), where=f"{source}: trainer_spec")
    normalizer = Message(parts.get(_NORMALIZER, b""), where=f"{source}: normalizer_spec")
    denormalizer = Message(parts.get(_DENORMALIZER, b""), where=f"{source}: denormalizer_spec")
    algorithm = _ALGORITHMS.get(number := trainer.integer(3, "model_type", 1))
    if algorithm is None:
        raise UnsupportedError(
            f"{source}: trainer_spec.model_type: expected 1 (unigram) or 2 (BPE), found {number}"
        )
    for name, is_set in (
        ("trainer_spec.treat_whitespace_as_suffix", trainer.boolean(24, "suffix", False)),
        ("normalizer_spec.escape_whitespaces", not normalizer.boolean(5, "escape", True)),
        ("denormalizer_spec", bool(denormalizer.blob(2, "precompiled_charsmap"))),
    ):
        if is_set:
            raise UnsupportedError(f"{source}: {name}: expected the default value, found another")
    if algorithm == "bpe" and TokenType.UNUSED in types:
        raise UnsupportedError(
            f"{source}: piece {types.index(TokenType.UNUSED)}: expected no unused pieces in BPE"
        )
    charsmap = normalizer.blob(2, "precompiled_charsmap")
    if len(charsmap) > _MAX_CHARSMAP_NBYTES:
        raise FormatError(
            f"{source}: normalizer_spec.precompiled_charsmap: expected up to "
            f"{_MAX_CHARSMAP_NBYTES:,} bytes, found {len(charsmap):,}"
        )
    controls = {
        text: i
        for i, (text, type_) in enumerate(zip(texts, types, strict=True))
        if type_ == TokenType.CONTROL
    }
    return SentencePieceFile(
        texts=texts,
        scores=scores,
        types=types,
        algorithm=algorithm,
        byte_fallback=trainer.boolean(35, "byte_fallback", False),
        unk_id=types.index(TokenType.UNKNOWN),
        bos_id=controls.get(trainer.text(46, "bos_piece", "<s>")),
        eos_id=controls.get(trainer.text(47, "eos_piece", "</s>")),
        charsmap=charsmap,
        add_dummy_prefix=normalizer.boolean(3, "add_dummy_prefix", True),
        remove_extra_whitespaces=normalizer.boolean(4, "remove_extra_whitespaces", True),
    )


def first_pieces(path: Path, n: int) -> list[str]:
    """The texts of the first n pieces."""
    source = str(path)
    found = fields(read_bytes(path, max_nbytes=_MAX_NBYTES), where=source)
    pieces = (value for number, _, value in found if number == _PIECE and isinstance(value, bytes))
    return [_piece(value, where=source)[0] for value in itertools.islice(pieces, n)]


def _read_fields(path: Path) -> tuple[list[str], array[float], bytearray, dict[int, bytes]]:
    """Texts, scores and types of all pieces, and the other messages by their field numbers."""
    source = str(path)
    texts: list[str] = []
    scores = array("f")
    types = bytearray()
    parts: dict[int, bytes] = {}
    for number, kind, value in fields(read_bytes(path, max_nbytes=_MAX_NBYTES), where=source):
        if number not in (_PIECE, _TRAINER, _NORMALIZER, _DENORMALIZER):
            continue
        if not isinstance(value, bytes) or kind != "bytes":
            raise FormatError(f"{source}: field {number}: expected a message, found {kind}")
        if number != _PIECE:
            parts[number] = value
            continue
        if len(texts) == _MAX_PIECES:
            raise FormatError(f"{source}: expected up to {_MAX_PIECES:,} pieces, found more")
        text, score, type_ = _piece(value, where=f"{source}: piece {len(texts)}")
        texts.append(text)
        scores.append(score)
        types.append(type_)
    return texts, scores, types, parts


def _check_pieces(texts: list[str], types: bytearray, *, source: str) -> None:
    """FormatError unless all texts differ and exactly one piece is the unknown one."""
    ids_of(texts, where=source, kind="pieces")
    if types.count(TokenType.UNKNOWN) != 1:
        raise FormatError(
            f"{source}: expected one unknown piece among {len(texts):,}, found "
            f"{types.count(TokenType.UNKNOWN)}"
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
