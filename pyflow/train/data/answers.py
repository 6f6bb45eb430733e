"""Answers of a model and their hidden states, in files that grow.

    answers.bin     records: header, tokens
    hidden.bin      F16 rows: what the base's head got when it drew each token of an answer
    features.bin    F32 rows, for Kangaroo: each position after the first layers

A program that is killed leaves at most one answer incomplete; it is dropped when the files are
opened again.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import UnsupportedError

# Mark, number, tokens of the prompt, tokens drawn, temperature, checksum of all that follows.
_HEADER = struct.Struct("<4sIIIfI")
_MARK = b"ans1"
_MOST_F16 = 65504.0
TEXT = -1.0
"""In place of a temperature: a given text, which the model has only read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A text that a model has written. `hidden` has a row for each drawn token, `features` one for
    each token but the last."""

    number: int
    temperature: float
    prompt: list[int]
    drawn: list[int]
    hidden: NDArray[np.floating[Any]]
    features: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An answer in the files: its tokens, and its first rows there."""

    number: int
    temperature: float
    n_prompt: int
    tokens: NDArray[np.int32]
    hidden: int
    features: int

    @property
    def drawn(self) -> NDArray[np.int32]:
        return self.tokens[self.n_prompt :]


class AnswerFiles:
    """The files of a folder, which is made if it is not there."""

    def __init__(self, folder: Path, n_embd: int, *, has_features: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._n_embd, self._has_features = n_embd, has_features
        self._paths = [folder / f"{name}.bin" for name in ("answers", "hidden", "features")]
        self.answers: list[Stored] = []
        self._n_hidden = self._n_features = 0
        end = self._read() if self._paths[0].exists() else 0
        self._files = [path.open("ab") for path in self._paths]
        sizes = (end, 2 * n_embd * self._n_hidden, 4 * n_embd * self._n_features)
        for file, size in zip(self._files, sizes, strict=True):
            file.truncate(size)

    def __enter__(self) -> AnswerFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files:
            file.close()

    @property
    def n_tokens(self) -> int:
        """Drawn ones."""
        return self._n_hidden

    @property
    def hidden(self) -> NDArray[np.float16]:
        """All rows (n, n_embd), a view into the file."""
        return self._mapped(1, "<f2", self._n_hidden)

    @property
    def features(self) -> NDArray[np.float32]:
        return self._mapped(2, "<f4", self._n_features)

    def add(self, answer: Answer) -> None:
        """Appends an answer. UnsupportedError: hidden states beyond F16."""
        if not np.abs(answer.hidden).max(initial=0) <= _MOST_F16:
            raise UnsupportedError(
                f"hidden states: expected values up to {_MOST_F16:,.0f}, found "
                f"{np.abs(answer.hidden).max():,}; this model cannot be a base"
            )
        tokens = np.array([*answer.prompt, *answer.drawn], "<i4")
        hidden = answer.hidden.astype("<f2").tobytes()
        features = b""
        if self._has_features and answer.features is not None:
            features = answer.features.astype("<f4").tobytes()
        self._files[1].write(hidden)
        self._files[2].write(features)
        self._files[1].flush()
        self._files[2].flush()
        total = _checksum(tokens.tobytes(), hidden, features)
        n = (answer.number, len(answer.prompt), len(answer.drawn))
        self._files[0].write(_HEADER.pack(_MARK, *n, answer.temperature, total) + tokens.tobytes())
        self._files[0].flush()
        self._remember(answer.number, answer.temperature, len(answer.prompt), tokens)

    def _remember(
        self, number: int, temperature: float, n_prompt: int, tokens: NDArray[np.int32]
    ) -> None:
        self.answers.append(
            Stored(
                number=number,
                temperature=temperature,
                n_prompt=n_prompt,
                tokens=tokens,
                hidden=self._n_hidden,
                features=self._n_features,
            )
        )
        self._n_hidden += len(tokens) - n_prompt
        self._n_features += (len(tokens) - 1) * self._has_features

    def _read(self) -> int:
        """Reads the records that are whole; returns where they end."""
        raw = self._paths[0].read_bytes()
        rest = [_bytes_of(path) for path in self._paths[1:]]
        at = 0
        while at + _HEADER.size <= len(raw):
            mark, number, n_prompt, n_drawn, temperature, total = _HEADER.unpack_from(raw, at)
            end = at + _HEADER.size + 4 * (n_prompt + n_drawn)
            if mark != _MARK or end > len(raw) or not n_prompt + n_drawn:
                break
            tokens = np.frombuffer(raw, "<i4", n_prompt + n_drawn, at + _HEADER.size)
            first, size = 2 * self._n_embd * self._n_hidden, 2 * self._n_embd * n_drawn
            hidden = rest[0][first : first + size]
            first = 4 * self._n_embd * self._n_features
            n_features = (n_prompt + n_drawn - 1) * self._has_features
            features = rest[1][first : first + 4 * self._n_embd * n_features]
            if _checksum(tokens.tobytes(), hidden, features) != total:
                break
            self._remember(number, temperature, n_prompt, tokens.astype(np.int32))
            at = end
        return at

    def _mapped(self, file: int, dtype: str, n: int) -> NDArray[np.floating[Any]]:
        if not n:
            return np.empty((0, self._n_embd), dtype)
        return np.memmap(self._paths[file], dtype, "r", shape=(n, self._n_embd))


def _bytes_of(path: Path) -> memoryview:
    """A view into a file, which may be larger than memory."""
    if not path.exists() or not path.stat().st_size:
        return memoryview(b"")
    return np.memmap(path, np.uint8, "r").data


def _checksum(*parts: bytes | memoryview) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found
