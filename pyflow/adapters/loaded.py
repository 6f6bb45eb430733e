"""The adapters of a loaded model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from pyflow import _core
from pyflow.adapters.choice import Choice, chosen
from pyflow.adapters.files import AdapterFile
from pyflow.adapters.opening import open_adapter
from pyflow.adapters.renaming import in_gguf
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.specs import Description
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import name_of

Given: TypeAlias = str | Path | tuple[str | Path, float]
"""A folder or file, perhaps with a factor."""


class Adapters:
    """What was loaded beside a stage, by name: that of the folder, or of the file."""

    def __init__(
        self, stage: _core.Stage, description: Description, given: Sequence[Given]
    ) -> None:
        """Raises as `open_adapter`; UnsupportedError, ShapeError: one is of another model."""
        self._native: dict[str, _core.Adapter] = {}
        self._sets: dict[Choice, _core.AdapterSet] = {}
        self.paths: dict[str, Path] = {}
        self._digests: list[str] = []
        factors = {}
        for one in given:
            path, factor = one if isinstance(one, tuple) else (one, 1.0)
            if not math.isfinite(factor):
                raise PyflowError(f"{path}: expected a finite factor, found {factor}")
            file = open_adapter(path)
            name = Path(path).resolve().name.removesuffix(".gguf")
            if name in self._native:
                raise PyflowError(
                    f"{path}: expected adapters of different names, found {name} twice"
                )
            self._native[name] = _core.Adapter(
                stage, file.checkpoint.native, _specs(file, description)
            )
            self.paths[name] = Path(path)
            self._digests.append(file.digest)
            factors[name] = float(factor)
        self.default: Choice = chosen(factors, self.names)
        """That applies to texts whose request says nothing."""

    @property
    def names(self) -> list[str]:
        return [*self._native]

    @property
    def fingerprint(self) -> str:
        """Of those that apply by default; empty: none do."""
        if not self.default:
            return ""
        digests = dict(zip(self.names, self._digests, strict=True))
        said = repr([(digests[name], factor) for name, factor in self.default])
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def begin(self, context: _core.Context, n_seq_max: int) -> None:
        """The default applies to all sequences of a new context."""
        for seq in range(n_seq_max):
            self.apply(context, seq, self.default)

    def apply(self, context: _core.Context, seq: int, choice: Choice) -> None:
        """These apply to a sequence from now on. ShapeError: the sequence has cells."""
        context.adapt(seq, self._native_set(choice) if choice else None)

    def _native_set(self, choice: Choice) -> _core.AdapterSet:
        if choice not in self._sets:
            if len(self._sets) > 256:  # of clients that try many factors
                self._sets.clear()
            self._sets[choice] = _core.AdapterSet(
                [(self._native[name], factor) for name, factor in choice]
            )
        return self._sets[choice]


def _specs(file: AdapterFile, description: Description) -> dict[str, _core.AdapterSpec]:
    """By the model's tensors."""
    checkpoint, spec = description.checkpoint, description.spec
    is_gguf = checkpoint.format == "GGUF"
    if is_gguf and file.checkpoint.format != "GGUF":
        return in_gguf(file, description)
    if file.checkpoint.format == "GGUF" and not is_gguf:
        raise UnsupportedError(
            f"{file.path}: expected a folder of PEFT beside a model in a folder, found GGUF; take "
            "the adapter as it was before it was converted, or the model in GGUF"
        )
    architecture = checkpoint.metadata.get("general.architecture", "")
    if is_gguf and file.architecture != architecture:
        raise UnsupportedError(
            f"{file.path}: expected an adapter for {architecture}, found one for "
            f"{file.architecture or 'none'}"
        )
    tensors = spec.tensors()
    found: dict[str, _core.AdapterSpec] = {}
    for place, low in file.matrices.items():
        name = _tensor(place, tensors, spec)
        if name is None or (name == name_of(spec.embedding.weight) and not spec.is_tied):
            raise UnsupportedError(
                f"{file.path}: {place}: expected a matrix of attention, a feed-forward network or "
                f"the head of {spec.name}, found none of these"
            )
        found[name] = {"a": low.a, "b": low.b, "rank": low.rank, "scale": low.scale}
    return found


def _tensor(place: str, tensors: set[str], spec: ModelSpec) -> str | None:
    """The model's tensor at a place: its name, or that of a module."""
    if place == "lm_head" and spec.is_tied:
        return name_of(spec.head.weight)
    name = place if place in tensors else f"{place}.weight"
    if name in tensors:
        return name
    # Folders may leave the first part of names out, or have one more.
    ends = [one for one in tensors if one.endswith(f".{name}") or name.endswith(f".{one}")]
    return ends[0] if len(ends) == 1 else None
