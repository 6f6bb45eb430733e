"""Adapters by name, as far as their files tell."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pyflow.adapters.choice import Choice, chosen
from pyflow.adapters.files import AdapterFile
from pyflow.adapters.opening import open_adapter
from pyflow.errors import PyflowError

Given: TypeAlias = str | Path | tuple[str | Path, float]
"""A folder or file, perhaps with a factor."""


class KnownAdapters:
    """Files that were opened, by name: that of the folder, or of the file."""

    def __init__(self, given: Sequence[Given]) -> None:
        """Raises as `open_adapter`; PyflowError: two of one name, or a factor that is no number."""
        self.files: dict[str, AdapterFile] = {}
        self.paths: dict[str, Path] = {}
        factors = {}
        for one in given:
            path, factor = one if isinstance(one, tuple) else (one, 1.0)
            if not math.isfinite(factor):
                raise PyflowError(f"{path}: expected a finite factor, found {factor}")
            file = open_adapter(path)
            name = Path(path).resolve().name.removesuffix(".gguf")
            if name in self.files:
                raise PyflowError(
                    f"{path}: expected adapters of different names, found {name} twice"
                )
            self.files[name], self.paths[name] = file, Path(path)
            factors[name] = float(factor)
        self.digests: Mapping[str, str] = {name: file.digest for name, file in self.files.items()}
        self.default: Choice = chosen(factors, self.names)
        """That applies to texts whose request says nothing."""

    @property
    def names(self) -> list[str]:
        return [*self.paths]

    def choose(self, given: object) -> Choice:
        """As `chosen`, among these."""
        return chosen(given, self.names)

    @property
    def fingerprint(self) -> str:
        """Of those that apply by default; empty: none do."""
        if not self.default:
            return ""
        said = repr([(self.digests[name], factor) for name, factor in self.default])
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
