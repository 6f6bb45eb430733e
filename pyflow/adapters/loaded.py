"""The adapters of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence

from pyflow import _core
from pyflow.adapters.choice import Choice
from pyflow.adapters.known import Given, KnownAdapters
from pyflow.adapters.placing import specs_of
from pyflow.specs import Description


class Adapters(KnownAdapters):
    """What was loaded beside a stage."""

    def __init__(
        self, stage: _core.Stage, description: Description, given: Sequence[Given]
    ) -> None:
        """Raises as `KnownAdapters`; UnsupportedError, ShapeError: one is of another model."""
        super().__init__(given)
        self._native = {
            name: _core.Adapter(stage, file.checkpoint.native, specs_of(file, description))
            for name, file in self.files.items()
        }
        self._sets: dict[Choice, _core.AdapterSet] = {}

    def nbytes(self, n_batch: int) -> int:
        """In memory, with a context of such steps in which all apply."""
        every: Choice = tuple((name, 1.0) for name in self.names)
        rows = self._native_set(every).row_floats if every else 0
        return sum(each.nbytes for each in self._native.values()) + 4 * n_batch * rows

    def begin(self, context: _core.Context, n_seq_max: int) -> None:
        """The default applies to all sequences of a new context."""
        for seq in range(n_seq_max):
            self.apply(context, seq, self.default)

    def apply(self, context: _core.Context, seq: int, choice: Choice) -> None:
        """These apply to a sequence from now on. ShapeError: the sequence has cells."""
        context.adapt(seq, self._native_set(choice) if choice else None)

    def choose(self, given: object) -> Choice:
        """As of `KnownAdapters`. FormatError: weights have no norm at such a factor."""
        choice = super().choose(given)
        if choice:
            self._native_set(choice)
        return choice

    def _native_set(self, choice: Choice) -> _core.AdapterSet:
        found = self._sets.get(choice)  # threads of a server make others at the same time
        if found is None:
            if len(self._sets) > 256:  # of clients that try many factors
                self._sets.clear()
            found = _core.AdapterSet([(self._native[name], factor) for name, factor in choice])
            self._sets[choice] = found
        return found
