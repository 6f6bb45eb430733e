"""Measurements that go on where they ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyflow.quant.journal import Journal

from pyflow.errors import FormatError, PyflowError

FACTS = {"text": "x", "n": 1}
N_SCORED = [3, 5, 2]


def journal(path: Path | None, facts: dict[str, object] = FACTS) -> Journal:
    return Journal(path, facts, N_SCORED, 2)


def records() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((2, n)) for n in N_SCORED]


def test_records_are_found_again_bit_by_bit(tmp_path: Path) -> None:
    path, made = tmp_path / "j", records()
    for i, record in enumerate(made):
        found = journal(path)
        assert len(found.records) == i
        found.add(record)
    for a, b in zip(journal(path).records, made, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_record_that_was_cut_short_is_dropped_and_written_again(tmp_path: Path) -> None:
    path, made = tmp_path / "j", records()
    first = journal(path)
    for record in made[:2]:
        first.add(record)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    again = journal(path)
    assert len(again.records) == 1
    again.add(made[1])
    assert path.read_bytes() == whole


def test_another_measurement_is_refused_by_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal(path).add(records()[0])
    before = path.read_bytes()
    with pytest.raises(PyflowError, match=r"n: 1 there, 2 here\)"):
        journal(path, {"text": "x", "n": 2})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"GGUF\x03\0\0\0", b"[]\n", b"x" * 100])
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not there yet"):
        journal(path)
    assert path.read_bytes() == content


def test_without_a_file_records_are_kept_in_memory() -> None:
    kept = journal(None)
    kept.add(records()[0])
    assert len(kept.records) == 1
