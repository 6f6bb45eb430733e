"""What a training has decided, beside its state: settings, collected answers, draft vocabulary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import FormatError, PyflowError
from pyflow.formats.replacing import replacing
from pyflow.train.data.answers import Stored

_VERSION = 1


class Plan:
    """A JSON file that is written anew with each decision.

    `answers`: of each round that is collected, the number after its last answer. `n_texts`: pieces
    of the given texts; None: not read yet.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """about: settings, base and texts, which must stay the same."""
        self._path, self.about = path, about
        self.n_texts: int | None = None
        self.answers: list[int] = []
        self.token_map: list[int] = []
        self.n_steps = 0

    def save(self) -> None:
        fields = {name: getattr(self, name) for name in _FIELDS}
        with replacing(self._path) as file:
            file.write(json.dumps({"version": _VERSION, "about": self.about, **fields}).encode())

    @classmethod
    def read(cls, path: Path, about: dict[str, Any]) -> Plan:
        """PyflowError: the plan was made for other settings, which it names."""
        try:
            found = json.loads(path.read_bytes())
            plan = cls(path, found["about"])
            for name in _FIELDS:
                setattr(plan, name, found[name])
        except FileNotFoundError:
            raise PyflowError(
                f"{path.parent.parent}: expected a training that was stopped, found none; leave "
                "--resume out"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: expected the plan of a training: {error}") from None
        for key, value in about.items():
            _check_same(path, key, plan.about.get(key), value)
        return plan


_FIELDS = ("n_texts", "answers", "token_map", "n_steps")


def _check_same(path: Path, key: str, before: Any, now: Any) -> None:
    if isinstance(now, dict) and isinstance(before, dict):
        for inner, value in now.items():
            _check_same(path, inner, before.get(inner), value)
    elif before != now:
        raise PyflowError(
            f"{path.parent.parent}: --resume: expected {key} {before!r:.60} as before, found "
            f"{now!r:.60}; give the same options, model and texts"
        )


def texts_hash(texts: Iterable[str]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        raw = text.encode()
        found.update(len(raw).to_bytes(8, "little") + raw)
    return found.hexdigest()


def first_answers(answers: Iterable[Stored], n_tokens: int, first: int) -> int:
    """The number after the answer that completes n_tokens, counted from `first` on without gaps;
    where the first gap is, if they are fewer."""
    lengths = {answer.number: len(answer.drawn) for answer in answers}
    number, total = first, 0
    while total < n_tokens and number in lengths:
        total += lengths[number]
        number += 1
    return number


def draft_vocabulary(
    answers: Iterable[Stored], n_vocab: int, size: int
) -> tuple[NDArray[np.int32], float]:
    """The most frequent tokens of the answers, ascending, and the share of tokens that they cover.

    Tokens that never occur follow by their numbers: BPE numbers merges by frequency.
    """
    counts = np.zeros(n_vocab, np.int64)
    for answer in answers:
        np.add.at(counts, answer.drawn, 1)
    chosen = np.argsort(-counts, kind="stable")[:size]
    covered = float(counts[chosen].sum() / max(1, counts.sum()))
    return np.sort(chosen).astype(np.int32), covered
