"""What has been measured, window by window, in a file if one is given, so that it can go on there.

The file begins with a line of JSON that says what is measured. Then come the records, little-endian
float64, of each window as many as its predictions times the number of figures for each. A record
that was being written when the program ended is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import FormatError, PyflowError

_MOST = 1 << 20
"""Bytes of the first line."""


class Journal:
    """The records so far: `records[i]` is float64 (figures, predictions) of window i."""

    def __init__(
        self,
        path: str | Path | None,
        facts: Mapping[str, object],
        n_scored: Sequence[int],
        n_figures: int,
    ) -> None:
        """facts: what is measured, as JSON can hold it. n_scored: predictions of each window.

        FormatError: a file that is no journal. PyflowError: one of another measurement.
        """
        self.path = None if path is None else Path(path)
        self.records: list[NDArray[np.float64]] = []
        self._shapes = [(n_figures, n) for n in n_scored]
        if self.path is None:
            return
        line = json.dumps(dict(facts), sort_keys=True).encode() + b"\n"
        if not self.path.exists():
            self.path.write_bytes(line)
            return
        with self.path.open("r+b") as file:
            found = file.readline(_MOST)
            if found != line:
                raise self._other(found, json.loads(line))
            end = len(line)
            for n, m in self._shapes:
                raw = file.read(8 * n * m)
                if len(raw) < 8 * n * m:
                    file.truncate(end)
                    break
                self.records.append(np.frombuffer(raw, "<f8").astype(np.float64).reshape(n, m))
                end += len(raw)

    def add(self, record: NDArray[np.float64]) -> None:
        """The record of the next window; it is in the file when this returns."""
        assert record.shape == self._shapes[len(self.records)]
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(np.ascontiguousarray(record, "<f8").tobytes())
        self.records.append(record)

    def _other(self, found: bytes, facts: dict[str, object]) -> PyflowError:
        try:
            others = json.loads(found)
            if not isinstance(others, dict):
                raise ValueError
        except ValueError:
            return FormatError(
                f"{self.path}: expected a file that an evaluation began, found another; name one "
                "that is not there yet"
            )
        differ = [
            f"{key}: {others.get(key)} there, {facts.get(key)} here"
            for key in sorted({*others, *facts})
            if others.get(key) != facts.get(key)
        ]
        return PyflowError(
            f"{self.path}: expected the same measurement, found another ({'; '.join(differ)}); "
            "name another file to begin anew"
        )
