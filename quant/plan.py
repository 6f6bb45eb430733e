"""What becomes of each tensor of a model, before any is touched.

    steps = plan(checkpoint, Recipe("Q4_K_M"), None)

The rules (`mixes`) go by the names that tensors have in GGUF files, which a `Naming` tells.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyflow.quant import budget, mixes
from pyflow.quant.blocks import FORMATS
from pyflow.quant.imatrix import Imatrix, Moments
from pyflow.quant.naming import Naming, Part, of_gguf
from pyflow.quant.weights import Tensor, Weights

from pyflow.errors import FormatError, PyflowError, ShapeError, UnsupportedError

OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
"""The matrix that gives the logits: OUTPUT, or where there is none, EMBEDDING."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to make of a model."""

    type: str
    """A name of mixes.TYPES."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Regular expressions that are searched for in tensor names, and the format of those matrices;
    the first that is found counts."""
    pure: bool = False
    """The type's main format for all matrices, whatever their role."""
    keep_output: bool = False
    """Leave the output matrix as it is."""
    allow_requantize: bool = False
    """Take weights that are quantized already, whose errors then add up."""


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one tensor."""

    tensor: Tensor
    to: str
    """The name of its type afterwards."""
    nbytes: int
    role: str
    """As of `mixes.role_of`; "" of what is no part of the model."""
    instead_of: str | None = None
    """The format that its rows, no whole blocks of it, ruled out."""
    kept_for: str | None = None
    """Why a matrix stays as it is."""
    importance: NDArray[np.float32] | None = None
    """(matrices, columns)"""
    moments: Moments | None = None
    """With them columns make up for each other's errors."""

    @property
    def copied(self) -> bool:
        return self.to == self.tensor.dtype


def plan(
    model: Weights,
    recipe: Recipe,
    imatrix: Imatrix | None,
    naming: Naming | None = None,
) -> list[Step]:
    """What would become of each tensor, in the file's order. naming: None for that of GGUF files.

    FormatError: an importance matrix, or options that no matrix goes with. PyflowError: importance
    where nothing is put into blocks. UnsupportedError:
    weights that are quantized already, or of a type that cannot be read. ShapeError: an override
    whose blocks do not fit.
    """
    if model.metadata.get("general.type") == "imatrix":
        raise FormatError(
            f"{model.path}: expected a model, found an importance matrix; it goes with --imatrix"
        )
    if imatrix is not None:
        imatrix.check(model.metadata)
    naming = naming or of_gguf(model)
    rules = _Rules(model, recipe, naming)
    shared_out = rules.shared_out()
    steps = []
    for tensor in model.tensors:
        part = naming.parts.get(tensor.name)
        role = "" if part is None else mixes.role_of(part.name)
        if not tensor.nbytes and 0 not in tensor.shape:  # nobody knows how many bytes it has
            raise _unreadable(model, tensor)
        if part is None or rules.stays(tensor):
            reason = naming.kept.get(tensor.name)
            steps.append(Step(tensor, tensor.dtype, tensor.nbytes, role, kept_for=reason))
            continue
        asked = rules.asked_for(tensor)
        name = asked or shared_out.get(role) or rules.choice(mixes.TYPES[recipe.type], tensor)
        fitting = mixes.fitting(name, tensor.shape[-1])
        if asked and fitting != name:
            raise ShapeError(
                f"{model.path}: tensor {tensor.name!r}: expected rows of a multiple of "
                f"{FORMATS[name].block} weights for {name}, found {tensor.shape[-1]}; "
                f"{fitting} would fit"
            )
        instead_of = name if fitting != name else None
        if fitting == tensor.dtype:
            steps.append(Step(tensor, fitting, tensor.nbytes, role, instead_of=instead_of))
            continue
        _check_source(model, tensor, recipe)
        by = imatrix if FORMATS[fitting].block > 1 else None
        steps.append(
            Step(
                tensor,
                fitting,
                _nbytes(tensor, fitting),
                role,
                instead_of=instead_of,
                importance=None if by is None else _importance(by, tensor, part),
                moments=None if by is None else by.moments.get(part.name),
            )
        )
    if rules.unused:
        raise rules.without_use(min(rules.unused))
    into_blocks = [step for step in steps if not step.copied and FORMATS[step.to].block > 1]
    if imatrix is not None and not into_blocks:
        raise PyflowError(
            f"{imatrix.path}: expected matrices that are put into blocks, for these alone have a "
            f"use for importance, found none of {model.path} for {recipe.type}; leave --imatrix out"
        )
    if imatrix is not None and all(step.importance is None for step in into_blocks):
        raise FormatError(
            f"{imatrix.path}: expected importance of what is put into blocks of {model.path}, such "
            f"as {into_blocks[0].tensor.name!r}, found that of "
            f"{', '.join(sorted(imatrix.columns)[:2])} and the like"
        )
    return steps


class _Rules:
    """Which matrices stay, and what format the others get."""

    def __init__(self, model: Weights, recipe: Recipe, naming: Naming) -> None:
        self._model, self._recipe, self._naming = model, recipe, naming
        self.unused = set(range(len(recipe.overrides)))
        """Overrides that have given no matrix its format yet."""
        names = {part.name for part in naming.parts.values()}
        self._output = OUTPUT if OUTPUT in names else EMBEDDING
        layers: dict[str, set[int]] = {}
        for name in names:
            if (layer := mixes.layer_of(name)) is not None:
                layers.setdefault(mixes.role_of(name), set()).add(layer)
        self._layers = {role: sorted(found) for role, found in layers.items()}

    def _name(self, tensor: Tensor) -> str:
        """GGUF's."""
        return self._naming.parts[tensor.name].name

    def _is_matrix(self, tensor: Tensor) -> bool:
        return (
            tensor.name in self._naming.parts
            and tensor.name not in self._naming.kept
            and mixes.is_matrix(self._name(tensor), tensor.shape)
        )

    def stays(self, tensor: Tensor) -> bool:
        return not self._is_matrix(tensor) or (
            self._recipe.keep_output and self._name(tensor) == self._output
        )

    def asked_for(self, tensor: Tensor) -> str | None:
        """The format that an override names."""
        for i, (pattern, name) in enumerate(self._recipe.overrides):
            if self._matches(pattern, tensor):
                self.unused.discard(i)
                return name
        return None

    def _matches(self, pattern: str, tensor: Tensor) -> bool:
        return bool(re.search(pattern, tensor.name) or re.search(pattern, self._name(tensor)))

    def choice(self, mix: mixes.Mix, tensor: Tensor) -> str:
        """The format by the tensor's role."""
        name = self._name(tensor)
        role, layer = mixes.role_of(name), mixes.layer_of(name)
        if self._recipe.pure or FORMATS[mix.base].block == 1:
            return mix.base
        if name == self._output:
            return mixes.of_output(mix.base)
        layers = self._layers.get(role, [])
        place = (layers.index(layer), len(layers)) if layer is not None else (0, 1)
        gqa, n_experts = self._naming.gqa, self._naming.n_experts
        return mixes.choose(mix, role, place, gqa=gqa, n_experts=n_experts)

    def shared_out(self) -> dict[str, str]:
        """Formats by role, where the mix shares bytes out."""
        mix = mixes.TYPES[self._recipe.type]
        if mix.within is None or self._recipe.pure:
            return {}
        matrices = [t for t in self._model.tensors if not self.stays(t)]
        free = [t for t in matrices if self.asked_for(t) is None]
        same = mixes.TYPES[mix.within]
        names = [mixes.fitting(self.choice(same, t), t.shape[-1]) for t in free]
        return budget.share_out(self._by_role(free), sum(map(_nbytes, free, names)))

    def _by_role(self, tensors: list[Tensor]) -> dict[str, budget.Matrices]:
        found: dict[str, budget.Matrices] = {}
        for tensor in tensors:
            role = mixes.role_of(self._name(tensor))
            before = found.get(role, budget.Matrices(0, 0))
            found[role] = budget.Matrices(
                before.n_weights + math.prod(tensor.shape),
                math.gcd(before.n_cols, tensor.shape[-1]),
                tied=self._name(tensor) == self._output and role == "token_embd",
            )
        return found

    def without_use(self, i: int) -> FormatError:
        """Of the override of that number, which gave no matrix its format."""
        overrides = self._recipe.overrides
        pattern = overrides[i][0]
        matches = [
            t for t in self._model.tensors if self._is_matrix(t) and self._matches(pattern, t)
        ]
        wanted = f"{self._model.path}: expected matrices whose names match {pattern!r}, found"
        if not matches:
            some = next((t.name for t in self._model.tensors if self._is_matrix(t)), "")
            return FormatError(f"{wanted} none, but such as {some!r}; 'pyflow inspect' lists all")
        for earlier, _ in overrides[:i]:
            if taken := [t.name for t in matches if self._matches(earlier, t)]:
                return FormatError(
                    f"{wanted} only such as {taken[0]!r}, which the earlier {earlier!r} takes; "
                    "give the one that matches less first"
                )
        return FormatError(
            f"{wanted} only {matches[0].name!r}, which --keep-output keeps; leave one out"
        )


def _importance(imatrix: Imatrix, tensor: Tensor, part: Part) -> NDArray[np.float32] | None:
    n_matrices, n_cols = math.prod(tensor.shape[:-2]), tensor.shape[-1]
    return imatrix.of(part.name, n_matrices, n_cols, part.expert)


def _nbytes(tensor: Tensor, name: str) -> int:
    """Of the tensor in that format."""
    return math.prod(tensor.shape) // FORMATS[name].block * FORMATS[name].block_bytes


def _check_source(model: Weights, tensor: Tensor, recipe: Recipe) -> None:
    form = FORMATS.get(tensor.dtype)
    if form is None:
        raise _unreadable(model, tensor)
    if form.block > 1 and not recipe.allow_requantize:
        raise UnsupportedError(
            f"{model.path}: tensor {tensor.name!r}: expected weights that have not been "
            f"quantized, found {form.name}, whose errors would add up; take a file in F16, or add "
            "--allow-requantize"
        )


def _unreadable(model: Weights, tensor: Tensor) -> UnsupportedError:
    return UnsupportedError(
        f"{model.path}: tensor {tensor.name!r}: expected a type that this build can read, found "
        f"{tensor.dtype}; take a file in F16"
    )
