"""Checks of callers' arguments: an error of one line that names the argument."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Collection
from typing import SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from .errors import ShapeError, UnsupportedError

_INT32 = np.iinfo(np.int32)


def whole(name: str, value: object, least: int = _INT32.min, most: int = _INT32.max) -> int:
    """value as an int. ShapeError unless it is a whole number from least to most."""
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        raise ShapeError(f"{name}: expected a whole number, found {reprlib.repr(value)}") from None
    if not least <= number <= most:
        raise ShapeError(f"{name}: expected {least} to {most}, found {number}")
    return number


def whole_numbers(name: str, values: object) -> NDArray[np.int32]:
    """As the extension takes them: (n,) int32. ShapeError for anything else, never rounded."""
    if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1:
        return np.ascontiguousarray(values)
    try:
        given = np.asarray(values)
    except ValueError:  # lists of several lengths
        given = np.empty(0, object)
    # An empty list has a type of its own choice; a bytearray would pass for numbers.
    whole = given.dtype.kind in "iu" or (given.size == 0 and given.dtype.kind == "f")
    if given.ndim != 1 or not whole or isinstance(values, bytearray):
        raise ShapeError(
            f"{name}: expected whole numbers in one dimension, found {reprlib.repr(values)}"
        )
    beyond = given[(given < _INT32.min) | (given > _INT32.max)]
    if beyond.size > 0:
        raise ShapeError(f"{name}: expected numbers of 32 bits, found {beyond[0]}")
    return np.ascontiguousarray(given, dtype=np.int32)


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    """UnsupportedError unless value is one of the choices."""
    if value not in choices:
        raise UnsupportedError(f"{name}: expected {' or '.join(choices)}, found {value!r}")
