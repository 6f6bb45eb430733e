"""A journal of measurements per window, optionally in a file, so that a run can be resumed.

    line     magic word, crc32 of the JSON in hex, JSON with what is measured
    records  <II: window number, crc32 of number and data; then <f8 (figures, predictions)

Reading stops at the first incomplete or damaged record, such as one that was being written when the
program was killed; it and everything after it are dropped.
"""

from __future__ import annotations

import fcntl
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from pyflow.formats.replacing import naming

from pyflow.closing import Closing
from pyflow.errors import FormatError, PyflowError

_MAX_LINE = 1 << 20
_WORD = b"pyflow-measured-2"
_MAX_DIFFERENCES = 3  # named in a message
_HEAD = struct.Struct("<II")


class Journal(Closing):
    """The records so far: `records[i]` is float64 (figures, predictions) of window i.

    The file is locked until `close`; the records stay available after it.
    """

    def __init__(
        self,
        path: str | Path | None,
        facts: Mapping[str, object],
        n_scored: Sequence[int],
        n_figures: int,
    ) -> None:
        """facts: what is measured, {name: value}; a value is a number, a text, or a list of a text
        to show and of further values to compare. n_scored: predictions of each window. path: None
        for no file.

        FormatError: not a journal. PyflowError: a journal of another measurement, or locked.
        """
        self.path = None if path is None else Path(path)
        self.records: list[NDArray[np.float64]] = []
        self._shapes = [(n_figures, n) for n in n_scored]
        self._file: BinaryIO | None = None
        if self.path is None:
            return
        if self.path.exists() and not self.path.is_file():
            raise PyflowError(
                f"{self.path}: expected a plain file, found a folder, a device or a pipe; give "
                "another name"
            )
        self._file = cast("BinaryIO", self.path.open("a+b"))
        try:
            with naming(self.path):
                self._read(self._file, dict(facts))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes and unlocks the file."""
        if self._file is not None:
            self._file.close()

    def add(self, record: NDArray[np.float64]) -> None:
        """Appends the record of the next window and flushes it to the file."""
        assert record.shape == self._shapes[len(self.records)]
        if self._file is not None and self.path is not None:
            raw = np.ascontiguousarray(record, "<f8").tobytes()
            with naming(self.path):
                self._file.write(_head(len(self.records), raw) + raw)
                self._file.flush()
        self.records.append(record)

    def _read(self, file: BinaryIO, facts: dict[str, object]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PyflowError(
                f"{self.path}: locked by another command; wait for it or name another file"
            ) from None
        said = json.dumps(facts, sort_keys=True).encode()
        line = b"%s %08x %s\n" % (_WORD, zlib.crc32(said), said)
        file.seek(0)
        found = file.readline(_MAX_LINE)
        if not found:
            file.write(line)
            file.flush()
        elif found != line:
            raise self._refusal(found, json.loads(said))
        end = len(line)
        for i, (n, m) in enumerate(self._shapes):
            head, raw = file.read(_HEAD.size), file.read(8 * n * m)
            if len(raw) < 8 * n * m or head != _head(i, raw):
                break
            self.records.append(np.frombuffer(raw, "<f8").astype(np.float64).reshape(n, m))
            end += len(head) + len(raw)
        file.truncate(end)

    def _refusal(self, found: bytes, facts: dict[str, object]) -> PyflowError:
        word, _, rest = found.partition(b" ")
        crc, _, said = rest.rstrip(b"\n").partition(b" ")
        if word == _WORD and found.endswith(b"\n") and crc == b"%08x" % zlib.crc32(said):
            differ = "; ".join(_differences(json.loads(said), facts))
            return PyflowError(
                f"{self.path}: expected the same measurement, found another ({differ}); name "
                "another file to start again"
            )
        if found.startswith(b"{") and b'"ids_sha256"' in found:
            return FormatError(
                f"{self.path}: expected a journal with checksums, found one of an earlier pyflow; "
                "delete it to measure again"
            )
        return FormatError(
            f"{self.path}: expected a journal of 'pyflow eval', found another file or a damaged "
            "one; delete it or name a new file"
        )


def _head(number: int, raw: bytes) -> bytes:
    return _HEAD.pack(number, zlib.crc32(raw, zlib.crc32(number.to_bytes(4, "little"))))


def _differences(there: dict[str, object], here: dict[str, object]) -> list[str]:
    found = [
        f"{key}: {_difference(there.get(key), here.get(key))}"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]
    more = len(found) - _MAX_DIFFERENCES
    return found if more <= 0 else [*found[:_MAX_DIFFERENCES], f"{more} more"]


def _difference(there: object, here: object) -> str:
    was, now = (value[0] if isinstance(value, list) else value for value in (there, here))
    if was == now:
        return f"another {now}"
    return (
        " there, ".join("none" if value is None else str(value) for value in (was, now)) + " here"
    )
