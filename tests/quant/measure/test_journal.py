"""Measurements that go on where they ended."""

from __future__ import annotations

import re
import resource
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pyflow.quant.measure.journal import Journal

from pyflow.errors import FormatError, PyflowError

FACTS = {"text": "x", "n": 1}
N_SCORED = [3, 5, 2]


def journal(path: Path | None, facts: dict[str, object] = FACTS) -> Journal:
    return Journal(path, facts, N_SCORED, 2)


def records() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((2, n)) for n in N_SCORED]


def kept(path: Path) -> list[np.ndarray]:
    """What a command that comes now finds."""
    with journal(path) as found:
        return found.records


def write(path: Path, made: list[np.ndarray]) -> bytes:
    with journal(path) as found:
        for record in made[len(found.records) :]:
            found.add(record)
    return path.read_bytes()


def test_records_are_found_again_bit_by_bit(tmp_path: Path) -> None:
    path, made = tmp_path / "j", records()
    for i in range(len(made)):
        assert len(kept(path)) == i
        write(path, made[: i + 1])
    for a, b in zip(kept(path), made, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path) as first:
        with pytest.raises(PyflowError, match=re.escape(str(path))):
            journal(path)
        first.add(records()[0])
    assert len(kept(path)) == 1


def test_records_from_the_first_broken_one_are_dropped_and_written_again(tmp_path: Path) -> None:
    path, made = tmp_path / "j", records()
    whole = write(path, made)
    first = whole.index(b"\n") + 1
    ends = np.cumsum([first, *(8 + 16 * n for n in N_SCORED)]).tolist()
    for at in range(first, len(whole)):
        n_before = sum(end <= at for end in ends[1:])
        flipped = whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :]
        for damaged in (flipped, whole[:at], whole[:at] + bytes(len(whole) - at)):
            path.write_bytes(damaged)
            assert len(kept(path)) == n_before + (damaged == whole)
        assert write(path, made) == whole
    # Records that are whole, but not in their places.
    a, b, c = (whole[i:j] for i, j in pairwise(ends))
    path.write_bytes(whole[:first] + b + a + c)
    assert kept(path) == []
    path.write_bytes(whole + c)
    assert len(kept(path)) == 3
    assert path.read_bytes() == whole


def test_a_file_that_ends_within_its_first_line_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "j"
    first = write(path, []).index(b"\n")
    for size in (1, first // 2, first):
        path.write_bytes(write(tmp_path / "whole", [])[:size])
        with pytest.raises(FormatError):
            journal(path)


def test_an_empty_file_is_begun(tmp_path: Path) -> None:
    (tmp_path / "j").touch()
    assert write(tmp_path / "j", records()) == write(tmp_path / "k", records())


def test_a_full_disk_is_told_of_the_file(tmp_path: Path) -> None:
    found = journal(tmp_path / "j")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            found.add(records()[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        found.close()
    assert caught.value.filename == str(tmp_path / "j")


def test_what_is_no_file_is_refused() -> None:
    for path in ("/dev/null", "/tmp"):
        with pytest.raises(PyflowError, match=path):
            journal(Path(path))


def test_another_measurement_is_refused_by_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "j"
    before = write(path, records()[:1])
    with pytest.raises(PyflowError, match=r"n: 1 there, 2 here\)"):
        journal(path, {"text": "x", "n": 2})
    assert path.read_bytes() == before


def test_what_differs_is_told_in_words_and_not_at_length(tmp_path: Path) -> None:
    path = tmp_path / "j"
    there = {"text": ["text", "ab12"], "model 1": ["a.gguf", 7, 9], "bos": None, "n_ctx": 64}
    journal(path, there).close()

    def told(**here: object) -> str:
        with pytest.raises(PyflowError) as error:
            journal(path, {**there, **here})
        return str(error.value).partition("another (")[2].partition(")")[0]

    assert told(text=["text", "cd34"]) == "text: another text"
    model = {"model 1": ["a.gguf", 8, 9], "model 2": ["b.gguf", 7, 9]}
    assert told(**model) == "model 1: another a.gguf; model 2: none there, b.gguf here"
    assert told(**{"model 1": ["a.gguf as Q8_0", 7, 9]}) == (
        "model 1: a.gguf there, a.gguf as Q8_0 here"
    )
    assert told(**model, bos=1, n_ctx=32) == (
        "bos: none there, 1 here; model 1: another a.gguf; model 2: none there, b.gguf here; 1 more"
    )


@pytest.mark.parametrize("content", [b"GGUF\x03\0\0\0", b"[]\n", b"x" * 100])
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        journal(path)
    assert path.read_bytes() == content


def test_a_damaged_first_line_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = write(path, records())
    for at in range(whole.index(b"\n") + 1):
        damaged = whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :]
        path.write_bytes(damaged)
        with pytest.raises(FormatError):
            journal(path)
        assert path.read_bytes() == damaged


def test_a_file_without_checksums_is_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"ids_sha256": "a", "pyflow": "eval ppl"}\n' + records()[0].tobytes())
    with pytest.raises(FormatError, match="delete it"):
        journal(path)


def test_without_a_file_records_are_kept_in_memory() -> None:
    with journal(None) as found:
        found.add(records()[0])
    assert len(found.records) == 1
