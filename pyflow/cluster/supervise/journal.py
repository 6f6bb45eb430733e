"""The tokens that jobs have drawn so far, in a file that outlives rank 0.

The supervisor holds the file and passes it to every rank 0. A record is 12 bytes (kind, bytes of
payload, crc32) and a payload, appended by one write. A job is a digest of prompt and sampling; its
tokens follow.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyflow.cluster.supervise.lifeline import of_process
from pyflow.cluster.wire.codec import encode
from pyflow.cluster.wire.messages import Begin
from pyflow.errors import CancelledError, PyflowError
from pyflow.sampling import SamplingParams

MAX_NBYTES = 1 << 26
_HEAD = struct.Struct("<III")
_JOB_KIND, _TOKENS_KIND = 1, 2
_DIGEST_NBYTES = hashlib.sha256().digest_size


@dataclass(slots=True)
class _Entry:
    digest: bytes
    tokens: list[int] = field(default_factory=list)


class Journal:
    """Jobs of earlier starts of rank 0, and of this one, which gets the same jobs in order."""

    def __init__(self, fd: int) -> None:
        """Reads the file. PyflowError if tokens may be missing."""
        self._fd = fd
        if os.fstat(fd).st_size >= MAX_NBYTES:
            raise PyflowError(
                f"journal: full at {MAX_NBYTES:,} bytes: the text cannot be continued"
            )
        self._jobs: list[_Entry] = []
        self._n_begun = 0
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        data = os.pread(fd, MAX_NBYTES, 0)
        end = 0
        for kind, payload, end in _records(data):  # noqa: B007
            if kind == _JOB_KIND:
                self._jobs.append(_Entry(payload))
            elif self._jobs:
                self._jobs[-1].tokens += np.frombuffer(payload, "<i4").tolist()
        os.ftruncate(fd, end)

    @classmethod
    def of_process(cls) -> Journal | None:
        """The journal of this process's supervisor, if it keeps one."""
        fd = of_process().journal
        return None if fd is None else cls(fd)

    def begin(
        self, prompt: Sequence[int], sampling: SamplingParams, stream: int = 0
    ) -> tuple[int, ...]:
        """The tokens that the next job drew before the restart; empty if it is new.

        PyflowError if prompt or sampling differ from those before the restart.
        """
        drawing = encode(Begin(0, sampling, stream, keep=0))
        digest = hashlib.sha256(np.asarray(prompt, "<i4").tobytes() + drawing).digest()
        self._n_begun += 1
        if self._n_begun > len(self._jobs):
            self._jobs.append(_Entry(digest))
            self._append(_JOB_KIND, digest)
            return ()
        job = self._jobs[self._n_begun - 1]
        if digest != job.digest:
            raise PyflowError(
                f"journal: job {self._n_begun}: prompt or sampling differ from before the restart: "
                "the text cannot be continued"
            )
        return tuple(job.tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """Records the job's next tokens, before anyone sees them.

        CancelledError if the job was interrupted at this place before the restart.
        """
        if self._n_begun < len(self._jobs):
            raise CancelledError(f"journal: job {self._n_begun} was interrupted here before")
        self._append(_TOKENS_KIND, np.asarray(tokens, "<i4").tobytes())

    def _append(self, kind: int, payload: bytes) -> None:
        head = _HEAD.pack(kind, len(payload), zlib.crc32(payload))
        if os.fstat(self._fd).st_size < MAX_NBYTES:
            os.write(self._fd, head + payload)


def _records(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Kind, payload and end of each record, up to the first damaged one."""
    at = 0
    while at + _HEAD.size <= len(data):
        kind, n, crc = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + n]
        right_size = {_JOB_KIND: n == _DIGEST_NBYTES, _TOKENS_KIND: n % 4 == 0}.get(kind, False)
        if len(payload) < n or zlib.crc32(payload) != crc or not right_size:
            return
        at += _HEAD.size + n
        yield kind, payload, at
