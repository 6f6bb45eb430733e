"""Adapters beside the matrices of a stage (csrc/bindings/model/bind_adapters.cpp)."""

from collections.abc import Sequence
from typing import Required, TypedDict

from pyflow._core_stubs.files import Checkpoint
from pyflow._core_stubs.model import Stage

class AdapterSpec(TypedDict, total=False):
    """The matrices of LoRA beside a tensor of the model: A and B by their names; what is missing is
    as `LowRankSpec` of csrc/model/adapters/sides.h has it."""

    a: Required[str]
    b: Required[str]
    rank: Required[int]
    scale: Required[float]
    magnitude: str
    is_lookup: bool
    by_row: bool
    order: Sequence[tuple[int, int]]
    n_parts: int
    by_part: bool
    part_rows: int
    part: int
    of: int
    turned: bool
    first: int
    step: int
    first_input: int

class Adapter:
    """A low-rank adapter (LoRA, DoRA) beside matrices of a stage; specs: by the stage's tensors.

    ShapeError for shapes that do not fit; FormatError for values that are not finite, and weights
    without a norm where there are magnitudes; UnsupportedError for a stage with a device, a source
    or an encoder, and for tensors that no product reads as they are.
    """

    def __init__(
        self, stage: Stage, file: Checkpoint, specs: Sequence[tuple[str, AdapterSpec]]
    ) -> None: ...
    @property
    def nbytes(self) -> int:
        """That it takes in memory, or would if its stage were loaded."""

class AdapterSet:
    """Adapters of one stage that apply together, in this order, each with a factor."""

    def __init__(self, adapters: Sequence[tuple[Adapter, float]]) -> None: ...
    @property
    def row_floats(self) -> int:
        """That a context has for each row of a step."""
