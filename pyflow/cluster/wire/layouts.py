"""How values lie in a message, each kind said once for writing and reading.

All little-endian, without gaps: a tuple is its length and its items; what may be None is a flag
and, where that is 1, the value; one of several is its place among them, and what it has of its
own. Lengths, flags and places are u32. A value can be written in one way only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from pyflow.errors import PyflowError


class WireError(PyflowError, ValueError):
    """Bytes that are no message, or a message that must not be sent."""


class Writer:
    """Appends what it is given to out, and gives it back."""

    def __init__(self, out: bytearray) -> None:
        self.out = out

    def number(self, form: struct.Struct, value: Any, where: str) -> Any:
        try:
            self.out += form.pack(value)
        except struct.error as e:
            raise WireError(f"{where}: expected a number ({e}), found {value!r}") from None
        return value

    def span(self, data: Any, _nbytes: int, _where: str) -> Any:
        self.out += data
        return data


class Reader:
    """Gives what a Writer was given at the same place; what it is given itself is None."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def number(self, form: struct.Struct, value: Any, where: str) -> Any:
        at = self.at
        if at + form.size > len(self.data):
            self.span(value, form.size, where)
        self.at = at + form.size
        return form.unpack_from(self.data, at)[0]

    def span(self, _: Any, nbytes: int, where: str) -> Any:
        left = len(self.data) - self.at
        if nbytes > left:
            raise WireError(f"{where}: expected {nbytes} more bytes, found {left}")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]


Wire: TypeAlias = Writer | Reader
# Puts a value through a Writer; or is given None, and gets one from a Reader. Either way the value
# comes back, or a WireError names the field (the string), what was expected, and what was found.
Layout: TypeAlias = Callable[[Wire, Any, str], Any]


def within(where: str, found: float, low: float, high: float) -> None:
    if not low <= found <= high:  # this way round NaN is refused
        expected = f"{low} to {high}" if low < high else f"{low}"
        raise WireError(f"{where}: expected {expected}, found {found}")


def number(form: str, low: float, high: float) -> Layout:
    """form is struct's letter."""
    packed = struct.Struct(f"<{form}")

    def layout(wire: Wire, value: Any, where: str) -> Any:
        value = wire.number(packed, value, where)
        if not low <= value <= high:
            within(where, value, low, high)
        return value

    return layout


def choice(*options: Any) -> Layout:
    number_of = number("I", 0, len(options) - 1)
    places = {option: place for place, option in enumerate(options)}

    def layout(wire: Wire, value: Any, where: str) -> Any:
        if value is not None and value not in places:
            names = [getattr(option, "__name__", option) for option in options]
            raise WireError(f"{where}: expected one of {names}, found {value!r}")
        return options[number_of(wire, None if value is None else places[value], where)]

    return layout


flag = choice(False, True)


def maybe(some: Layout) -> Layout:
    def layout(wire: Wire, value: Any, where: str) -> Any:
        return some(wire, value, where) if flag(wire, value is not None, where) else None

    return layout


def several(item: Layout, most: int, *, least: int = 0) -> Layout:
    length = number("I", least, most)

    def layout(wire: Wire, value: Any, where: str) -> Any:
        n = length(wire, None if value is None else len(value), f"length of {where}")
        return tuple([item(wire, each, where) for each in value or (None,) * n])

    return layout


def text(max_nbytes: int) -> Layout:
    """UTF-8."""
    length = number("I", 0, max_nbytes)

    def layout(wire: Wire, value: Any, where: str) -> Any:
        try:
            data = None if value is None else value.encode()
            n = length(wire, None if data is None else len(data), f"bytes of {where}")
            return str(wire.span(data, n, where), "utf-8")
        except UnicodeError as e:
            raise WireError(f"{where}: expected UTF-8, found {e}") from None

    return layout


def matrix(max_rows: int, max_columns: int) -> Layout:
    """f32, row by row, after the numbers of rows and columns; read as a view of the bytes."""
    n_rows, n_columns = number("I", 1, max_rows), number("I", 1, max_columns)

    def layout(wire: Wire, value: Any, where: str) -> Any:
        rows = columns = data = None
        if value is not None:
            if value.dtype != np.float32 or value.ndim != 2:
                found = f"{value.ndim} of {value.dtype}"
                raise WireError(f"{where}: expected 2 dimensions of float32, found {found}")
            (rows, columns), data = value.shape, np.ascontiguousarray(value, "<f4").data
        rows = n_rows(wire, rows, f"rows of {where}")
        columns = n_columns(wire, columns, f"columns of {where}")
        data = wire.span(data, 4 * rows * columns, where)
        return np.frombuffer(data, "<f4").reshape(rows, columns)

    return layout


class Record:
    """The layout of a dataclass; agree() refuses fields that contradict each other."""

    def __init__(
        self, kind: type, agree: Callable[[Any], None] | None = None, /, **fields: Layout
    ) -> None:
        self.kind, self.agree = kind, agree
        self.fields = [(name, f"{kind.__name__}.{name}", fields[name]) for name in fields]

    def __call__(self, wire: Wire, value: Any, _: str, **known: Any) -> Any:
        """known: fields that the layout has not, and whose values stand elsewhere."""
        if value is None:
            for name, where, layout in self.fields:
                known[name] = layout(wire, None, where)
            value = self.kind(**known)
        else:
            for name, where, layout in self.fields:
                layout(wire, getattr(value, name, None), where)
        if self.agree is not None:
            self.agree(value)
        return value


def one_of(*records: Record) -> Layout:
    by_kind = {record.kind: record for record in records}
    kinds = choice(*by_kind)

    def layout(wire: Wire, value: Any, where: str) -> Any:
        kind = kinds(wire, None if value is None else type(value), where)
        return by_kind[kind](wire, value, where)

    return layout
