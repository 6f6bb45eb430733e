"""What was drawn before rank 0 died is there when the next one asks for the same."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from pyflow import PyflowError, SamplingParams
from pyflow.cluster.supervise import journal
from pyflow.cluster.supervise.journal import Journal
from pyflow.errors import CancelledError

SAMPLING = SamplingParams(seed=1)


@pytest.fixture
def fd() -> Iterator[int]:
    file = os.memfd_create("journal")
    yield file
    os.close(file)


def test_jobs_are_asked_for_again_in_their_order(fd: int) -> None:
    first = Journal(fd)
    assert first.begin([1, 2], SAMPLING) == ()
    first.commit([3])
    first.commit([4, 5])
    assert first.begin([1, 2, 3, 4, 5, 6], SAMPLING, 1) == ()
    first.commit([7])
    second = Journal(fd)
    assert second.begin([1, 2], SAMPLING) == (3, 4, 5)
    assert second.begin([1, 2, 3, 4, 5, 6], SAMPLING, 1) == (7,)
    second.commit([8])
    third = Journal(fd)
    third.begin([1, 2], SAMPLING)
    assert third.begin([1, 2, 3, 4, 5, 6], SAMPLING, 1) == (7, 8)
    assert third.begin([9], SAMPLING) == ()


def test_a_job_that_was_interrupted_ends_where_it_did(fd: int) -> None:
    first = Journal(fd)
    first.begin([1], SAMPLING)
    first.commit([2])
    first.begin([3], SAMPLING)
    second = Journal(fd)
    assert second.begin([1], SAMPLING) == (2,)
    with pytest.raises(CancelledError, match="job 1"):
        second.commit([5])


@pytest.mark.parametrize(
    ("prompt", "sampling", "stream"),
    [([1, 3], SAMPLING, 0), ([1, 2], SamplingParams(seed=2), 0), ([1, 2], SAMPLING, 1)],
)
def test_another_job_is_refused(
    fd: int, prompt: list[int], sampling: SamplingParams, stream: int
) -> None:
    Journal(fd).begin([1, 2], SAMPLING)
    with pytest.raises(PyflowError, match="job 1"):
        Journal(fd).begin(prompt, sampling, stream)


def test_what_was_written_in_part_is_dropped(fd: int) -> None:
    first = Journal(fd)
    first.begin([1], SAMPLING)
    first.commit([2])
    whole = os.fstat(fd).st_size
    first.commit([3, 4])
    for size in range(os.fstat(fd).st_size - 1, whole - 1, -1):
        os.ftruncate(fd, size)
        again = Journal(fd)
        assert again.begin([1], SAMPLING) == (2,)
        assert os.fstat(fd).st_size == whole
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)  # else the system appends what is written anywhere
    os.pwrite(fd, b"\xff", whole - 1)
    again = Journal(fd)
    assert again.begin([1], SAMPLING) == ()
    again.commit([6])
    assert Journal(fd).begin([1], SAMPLING) == (6,)


def test_it_is_bounded(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_NBYTES", 100)
    full = Journal(fd)
    full.begin([1], SAMPLING)
    for token in range(50):
        full.commit([token])
    assert 100 <= os.fstat(fd).st_size < 120
    with pytest.raises(PyflowError, match="100 bytes"):
        Journal(fd)
