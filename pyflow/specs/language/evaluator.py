"""Values of a spec's keys for one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyflow.errors import FormatError
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.shapes import REQUIRED, Param, Table


class Evaluator:
    """Values of keys and facts, as a model's configuration resolves them."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def value(self, shape: Table, table: Mapping[str, Any], key: str) -> Any:
        """The value of a key of `table`, checked by `shape`; its default if nothing resolves.

        FormatError: it is required and nothing resolves, or it is of another kind.
        """
        param = cast("Param", shape[key])
        given = table.get(key)
        if given is None:
            return param.default
        try:
            found = given.resolve(self.facts)
        except UnresolvedError as error:
            if param.default is not REQUIRED:
                return param.default
            raise FormatError(f"{error}: expected {param.kind.expected}, found nothing") from None
        taken = param.kind.take(found.value)
        if taken is None:
            raise found.fault(param.kind.expected)
        return taken

    def fact(self, name: str, default: int | None = None) -> int:
        """A standard fact that is an integer."""
        try:
            return cast("int", self.facts.fact(name))
        except UnresolvedError as error:
            if default is not None:
                return default
            raise FormatError(f"{error}: expected an integer, found nothing") from None
