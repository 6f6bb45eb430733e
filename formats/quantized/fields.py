"""The quantization_config of a folder, read strictly: a field that nobody knows is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyflow.errors import FormatError, UnsupportedError
from pyflow.text import printable

T = TypeVar("T", bound=str | int | None)
ADVICE = "take the original model, and quantize that"
_MAX_NAMES, _MAX_NAME = 1 << 16, 1024


@dataclass(slots=True)
class Fields:
    """One object of a configuration. where: its place, for messages."""

    where: str
    given: dict[str, Any]
    known: set[str] = field(default_factory=set)

    def fault(self, name: str, expected: str) -> UnsupportedError:
        """The error of a value that is none of those expected."""
        found = printable(repr(self.given.get(name)))
        return UnsupportedError(
            f"{self.where}.{name}: expected {expected}, found {found:.80}; {ADVICE}"
        )

    def choice(self, name: str, choices: Sequence[T], *otherwise: T) -> T:
        """One of the choices; if the field is absent or null, `otherwise`, or else an error."""
        self.known.add(name)
        value = self.given.get(name)
        if value is None and otherwise:
            return otherwise[0]
        for one in choices:
            if type(one) is type(value) and one == value:
                return one
        raise self.fault(name, _listed(choices))

    def size(self, name: str, *otherwise: int, least: int = 1) -> int:
        """A whole number; least and more."""
        self.known.add(name)
        value = self.given.get(name)
        if value is None and otherwise:
            return otherwise[0]
        if type(value) is int and least <= value < 1 << 31:
            return value
        raise self.fault(name, f"a whole number of {least} or more")

    def flag(self, name: str, *otherwise: bool) -> bool:
        """true or false."""
        self.known.add(name)
        value = self.given.get(name)
        if value is None and otherwise:
            return otherwise[0]
        if isinstance(value, bool):
            return value
        raise self.fault(name, "true or false")

    def names(self, name: str) -> list[str]:
        """A list of texts, empty if the field is absent or null."""
        self.known.add(name)
        value = self.given.get(name) or []
        is_list = isinstance(value, list) and len(value) <= _MAX_NAMES
        if not is_list or not all(isinstance(one, str) and len(one) <= _MAX_NAME for one in value):
            raise self.fault(name, "a list of names")
        found: list[str] = value
        return found

    def table(self, name: str) -> dict[str, Any]:
        """An object, empty if the field is absent or null."""
        self.known.add(name)
        value = self.given.get(name)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise self.fault(name, "an object")

    def absent(self, *names: str) -> None:
        """Fields that must be absent, null, false or empty: what they turn on is not supported."""
        for name in names:
            self.known.add(name)
            if self.given.get(name) not in (None, False, [], {}, "", "none"):
                raise self.fault(name, "none")

    def passed_over(self, *names: str) -> None:
        """Fields that say how weights were quantized or are to be run, not what they are."""
        self.known.update(names)

    def close(self) -> None:
        """UnsupportedError: a field is left that nobody asked for."""
        for name in self.given:
            if name not in self.known:
                raise UnsupportedError(
                    f"{self.where}: {printable(name)!r:.80}: expected a field that pyflow knows, "
                    f"found another; update pyflow, or {ADVICE}"
                )


def _listed(choices: Sequence[object]) -> str:
    texts = [repr(one) for one in choices]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def check_ignored(where: str, stems: Iterable[str], names: Sequence[str]) -> None:
    """FormatError: a module is quantized that the configuration says is not. A name is that of a
    module or of a part of it, from its begin or to its end."""
    for stem in stems:
        for one in names:
            if stem == one or stem.startswith(f"{one}.") or f".{stem}".endswith(f".{one}"):
                raise FormatError(
                    f"{where}: {printable(stem):.200}: expected plain weights, for the "
                    f"configuration says that {printable(one):.100} is not quantized, found "
                    "quantized ones; convert it again"
                )
