"""The adapters of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence

from pyflow import _core
from pyflow.adapters.choice import Choice
from pyflow.adapters.files import AdapterFile
from pyflow.adapters.known import Given, KnownAdapters
from pyflow.adapters.renaming import in_gguf
from pyflow.errors import UnsupportedError
from pyflow.specs import Description
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import name_of


class Adapters(KnownAdapters):
    """What was loaded beside a stage."""

    def __init__(
        self, stage: _core.Stage, description: Description, given: Sequence[Given]
    ) -> None:
        """Raises as `KnownAdapters`; UnsupportedError, ShapeError: one is of another model."""
        super().__init__(given)
        self._native = {
            name: _core.Adapter(stage, file.checkpoint.native, _specs(file, description))
            for name, file in self.files.items()
        }
        self._sets: dict[Choice, _core.AdapterSet] = {}

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
