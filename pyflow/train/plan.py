"""What a training has decided, beside its state: settings, collected answers, draft vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyflow.errors import FormatError, PyflowError
from pyflow.formats.replacing import replacing
from pyflow.formats.side_files import read_json
from pyflow.train.data.answers import Stored

_VERSION = 1
_MOST_NBYTES = 16 << 20


class Plan(msgspec.Struct, kw_only=True):
    """A JSON file that is written anew with each decision."""

    about: dict[str, Any]
    """Settings, base and texts, which stay the same."""
    version: int = _VERSION
    n_texts: int | None = None
    """Pieces of the given texts; None: not read yet."""
    answers: list[int] = []
    """Of each round that is collected, the number after its last answer."""
    token_map: list[int] = []
    n_steps: int = 0

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            file.write(msgspec.json.encode(self))


def read_plan(path: Path, about: dict[str, Any], n_vocab: int) -> Plan:
    """The plan of a training that was stopped.

    PyflowError: there is none, or it was made for other settings, which it names. FormatError.
    """
    if not path.exists():
        raise PyflowError(
            f"{path.parent.parent}: expected a training that was stopped, found none; leave "
            "--resume out"
        )
    plan = read_json(path, Plan, max_nbytes=_MOST_NBYTES)
    if plan.version != _VERSION:
        raise FormatError(f"{path}: expected version {_VERSION}, found {plan.version}")
    for key, value in about.items():
        _check_same(path, key, plan.about.get(key), value)
    ids = np.array(plan.token_map, np.int64)
    if ids.size and (ids[0] < 0 or ids[-1] >= n_vocab or (np.diff(ids) <= 0).any()):
        raise FormatError(f"{path}: token_map: expected ascending tokens below {n_vocab}")
    return plan


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
    answers: Iterable[Stored],
    n_vocab: int,
    size: int,
    among: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], float]:
    """The most frequent tokens of the answers, ascending, and the share of tokens that they cover.

    Tokens that never occur follow by their numbers: BPE numbers merges by frequency. among: only
    these are chosen from.
    """
    counts = np.zeros(n_vocab, np.int64)
    for answer in answers:
        np.add.at(counts, answer.drawn, 1)
    tokens = np.arange(n_vocab) if among is None else among
    chosen = tokens[np.argsort(-counts[tokens], kind="stable")[:size]]
    covered = float(counts[chosen].sum() / max(1, counts.sum()))
    return np.sort(chosen).astype(np.int32), covered
