"""What has been measured, window by window, in a file if one is given, so that it can go on there.

The file begins with a line: a word, the crc32 of the rest, and JSON that says what is measured.
Then come the records, each of a head (number of its window, crc32 of all else in the record) and
of little-endian float64, as many as the window's predictions times the number of figures for each.
The first record that does not fit, as the one that was being written when the program ended, and
all behind it are dropped.
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

_MOST = 1 << 20
"""Bytes of the first line."""
_WORD = b"pyflow-measured-2"
_TOLD = 3
"""Differences of two measurements that a message names."""
_HEAD = struct.Struct("<II")


class Journal(Closing):
    """The records so far: `records[i]` is float64 (figures, predictions) of window i.

    Its file belongs to it alone until it is closed; the records stay.
    """

    def __init__(
        self,
        path: str | Path | None,
        facts: Mapping[str, object],
        n_scored: Sequence[int],
        n_figures: int,
    ) -> None:
        """facts: what is measured, by names that a message may use: numbers or texts, or lists of
        a text to tell and of what else must be the same. n_scored: predictions of each window.

        FormatError: a file that is no journal. PyflowError: one of another measurement, or one that
        another command has open.
        """
        self.path = None if path is None else Path(path)
        self.records: list[NDArray[np.float64]] = []
        self._shapes = [(n_figures, n) for n in n_scored]
        self._file: BinaryIO | None = None
        if self.path is None:
            return
        if self.path.exists() and not self.path.is_file():
            raise PyflowError(
                f"{self.path}: expected a file to keep measurements in, found a folder, a device "
                "or a pipe; give another name"
            )
        self._file = cast("BinaryIO", self.path.open("a+b"))
        try:
            with naming(self.path):
                self._read(self._file, dict(facts))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets others have the file."""
        if self._file is not None:
            self._file.close()

    def add(self, record: NDArray[np.float64]) -> None:
        """The record of the next window; it is in the file when this returns."""
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
                f"{self.path}: another command is writing it; wait for its end or name another file"
            ) from None
        said = json.dumps(facts, sort_keys=True).encode()
        line = b"%s %08x %s\n" % (_WORD, zlib.crc32(said), said)
        file.seek(0)
        found = file.readline(_MOST)
        if not found:
            file.write(line)
            file.flush()
        elif found != line:
            raise self._other(found, json.loads(said))
        end = len(line)
        for i, (n, m) in enumerate(self._shapes):
            head, raw = file.read(_HEAD.size), file.read(8 * n * m)
            if len(raw) < 8 * n * m or head != _head(i, raw):
                break
            self.records.append(np.frombuffer(raw, "<f8").astype(np.float64).reshape(n, m))
            end += len(head) + len(raw)
        file.truncate(end)

    def _other(self, found: bytes, facts: dict[str, object]) -> PyflowError:
        word, _, rest = found.partition(b" ")
        crc, _, said = rest.rstrip(b"\n").partition(b" ")
        if word == _WORD and found.endswith(b"\n") and crc == b"%08x" % zlib.crc32(said):
            differ = "; ".join(_differences(json.loads(said), facts))
            return PyflowError(
                f"{self.path}: expected the same measurement, found another ({differ}); name "
                "another file to begin anew"
            )
        if found.startswith(b"{") and b'"ids_sha256"' in found:
            return FormatError(
                f"{self.path}: an earlier version of pyflow wrote it, without checksums; delete it "
                "to measure anew"
            )
        return FormatError(
            f"{self.path}: expected a file that an evaluation began, found another or a damaged "
            "one; name one that is not there yet, or delete it"
        )


def _head(number: int, raw: bytes) -> bytes:
    return _HEAD.pack(number, zlib.crc32(raw, zlib.crc32(number.to_bytes(4, "little"))))


def _differences(there: dict[str, object], here: dict[str, object]) -> list[str]:
    told = [
        f"{key}: {_difference(there.get(key), here.get(key))}"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]
    return told if len(told) <= _TOLD else [*told[:_TOLD], f"{len(told) - _TOLD} more"]


def _difference(there: object, here: object) -> str:
    was, now = (value[0] if isinstance(value, list) else value for value in (there, here))
    if was == now:
        return f"another {now}"
    return (
        " there, ".join("none" if value is None else str(value) for value in (was, now)) + " here"
    )
