"""Decide the format of each tensor of a model before any tensor is read.

    steps = plan(checkpoint, Recipe("Q4_K_M"), None)

The rules (`mixes`) use the names of GGUF files; a `Naming` maps a folder's names to them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyflow.quant import budget, mixes
from pyflow.quant.blocks import FORMATS, read_as
from pyflow.quant.imatrix import Imatrix, Moments
from pyflow.quant.naming import Naming, Part, of_gguf
from pyflow.quant.weights import Tensor, Weights

from pyflow.errors import FormatError, PyflowError, ShapeError, UnsupportedError

_ONLY_READ = "their formats are only read; --allow-requantize turns them into others"
OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
"""The output matrix, which gives the logits, is OUTPUT, or EMBEDDING if a model has no OUTPUT."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantize a model."""

    type: str
    """A key of mixes.TYPES."""
    overrides: tuple[tuple[str, str], ...] = ()
    """(regular expression, format): the format of matrices whose name contains a match. The first
    expression that matches wins."""
    pure: bool = False
    """Use the type's main format for all matrices, whatever their role."""
    keep_output: bool = False
    """Leave the output matrix as it is."""
    allow_requantize: bool = False
    """Accept weights that are quantized already; the errors add up."""


@dataclass(frozen=True, slots=True)
class Step:
    """The plan for one tensor."""

    tensor: Tensor
    to: str
    """The name of its new type."""
    nbytes: int
    """Size in the new type."""
    role: str
    """As `mixes.role_of` returns it; "" for a tensor that is no part of the model."""
    instead_of: str | None = None
    """The format that the rules chose, but whose blocks do not divide the rows."""
    kept_for: str | None = None
    """Why a matrix stays as it is."""
    importance: NDArray[np.float32] | None = None
    """(matrices, columns)"""
    moments: Moments | None = None
    """Second moments of the inputs, for GPTQ."""

    @property
    def copied(self) -> bool:
        return self.to == self.tensor.dtype


def plan(
    model: Weights,
    recipe: Recipe,
    imatrix: Imatrix | None,
    naming: Naming | None = None,
) -> list[Step]:
    """A step for each tensor, in the file's order. naming: None for GGUF's own names.

    FormatError: model is an importance matrix, an override matches no matrix, or the imatrix has
    none of the matrices. PyflowError: an imatrix, but nothing becomes blocks. UnsupportedError:
    weights are quantized already, or of a type that cannot be read. ShapeError: an override's
    blocks do not divide the rows.
    """
    if model.metadata.get("general.type") == "imatrix":
        raise FormatError(
            f"{model.path}: expected a model, found an importance matrix; pass it with --imatrix"
        )
    if imatrix is not None:
        imatrix.check(model.metadata)
    rules = _Rules(model, recipe, naming or of_gguf(model))
    steps = [rules.step(tensor, imatrix) for tensor in model.tensors]
    rules.check_overrides()
    only_read = [step.tensor for step in steps if step.kept_for == _ONLY_READ]
    if only_read and not any(_is_float_matrix(step.tensor) for step in steps):
        _check_source(model, only_read[0], recipe)
    if imatrix is not None:
        _check_importance(model, recipe, imatrix, steps)
    return steps


def _check_importance(model: Weights, recipe: Recipe, imatrix: Imatrix, steps: list[Step]) -> None:
    """Raises as `plan` does if no matrix uses the importance."""
    into_blocks = [step for step in steps if not step.copied and FORMATS[step.to].block > 1]
    if not into_blocks:
        raise PyflowError(
            f"{imatrix.path}: expected matrices that become blocks, found none of {model.path} for "
            f"{recipe.type}; leave --imatrix out"
        )
    if all(step.importance is None for step in into_blocks):
        raise FormatError(
            f"{imatrix.path}: expected importance of matrices of {model.path}, such as "
            f"{into_blocks[0].tensor.name!r}, found {', '.join(sorted(imatrix.columns)[:2])}"
        )


class _Rules:
    """Which matrices stay as they are, and the formats of the others."""

    def __init__(self, model: Weights, recipe: Recipe, naming: Naming) -> None:
        self._model, self._recipe, self._naming = model, recipe, naming
        self._unused = set(range(len(recipe.overrides)))
        """Overrides that have decided no matrix yet."""
        names = {part.name for part in naming.parts.values()}
        self._output = OUTPUT if OUTPUT in names else EMBEDDING
        layers: dict[str, set[int]] = {}
        for name in names:
            if (layer := mixes.layer_of(name)) is not None:
                layers.setdefault(mixes.role_of(name), set()).add(layer)
        self._layers = {role: sorted(found) for role, found in layers.items()}
        self._by_budget = self._within_budget()

    def step(self, tensor: Tensor, imatrix: Imatrix | None) -> Step:
        """The plan for one tensor. Raises as `plan` does."""
        part = self._naming.parts.get(tensor.name)
        role = "" if part is None else mixes.role_of(part.name)
        if not tensor.nbytes and 0 not in tensor.shape:  # a type of unknown size
            raise _unreadable(self._model, tensor)
        if part is None or self._stays(tensor):
            reason = self._naming.kept.get(tensor.name)
            return Step(tensor, tensor.dtype, tensor.nbytes, role, kept_for=reason)
        asked = self._override(tensor)
        mix = mixes.TYPES[self._recipe.type]
        name = asked or self._by_budget.get(role) or self._choice(mix, tensor)
        fitting = mixes.fitting(name, tensor.shape[-1])
        if asked and fitting != name:
            raise ShapeError(
                f"{self._model.path}: tensor {tensor.name!r}: expected rows of a multiple of "
                f"{FORMATS[name].block} weights for {name}, found {tensor.shape[-1]}; use {fitting}"
            )
        instead_of = name if fitting != name else None
        if fitting == tensor.dtype:
            return Step(tensor, fitting, tensor.nbytes, role, instead_of=instead_of)
        stored = read_as(tensor.dtype)
        if stored and not stored.encodes and not asked and not self._recipe.allow_requantize:
            return Step(tensor, tensor.dtype, tensor.nbytes, role, kept_for=_ONLY_READ)
        _check_source(self._model, tensor, self._recipe)
        used = imatrix if FORMATS[fitting].block > 1 else None
        return Step(
            tensor,
            fitting,
            _nbytes(tensor, fitting),
            role,
            instead_of=instead_of,
            importance=None if used is None else _importance(used, tensor, part),
            moments=None if used is None else used.moments.get(part.name),
        )

    def _name(self, tensor: Tensor) -> str:
        """Its name in a GGUF file."""
        return self._naming.parts[tensor.name].name

    def _is_matrix(self, tensor: Tensor) -> bool:
        return (
            tensor.name in self._naming.parts
            and tensor.name not in self._naming.kept
            and mixes.is_matrix(self._name(tensor), tensor.shape)
        )

    def _stays(self, tensor: Tensor) -> bool:
        return not self._is_matrix(tensor) or (
            self._recipe.keep_output and self._name(tensor) == self._output
        )

    def _override(self, tensor: Tensor) -> str | None:
        """The format that the first matching override names."""
        for i, (pattern, name) in enumerate(self._recipe.overrides):
            if self._matches(pattern, tensor):
                self._unused.discard(i)
                return name
        return None

    def _matches(self, pattern: str, tensor: Tensor) -> bool:
        return bool(re.search(pattern, tensor.name) or re.search(pattern, self._name(tensor)))

    def _choice(self, mix: mixes.Mix, tensor: Tensor) -> str:
        """The format that the mix gives to the tensor's role."""
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

    def _within_budget(self) -> dict[str, str]:
        """Formats by role if the mix has a budget of bytes, else none."""
        mix = mixes.TYPES[self._recipe.type]
        if mix.within is None or self._recipe.pure:
            return {}
        matrices = [t for t in self._model.tensors if not self._stays(t)]
        free = [t for t in matrices if self._override(t) is None]
        same = mixes.TYPES[mix.within]
        names = [mixes.fitting(self._choice(same, t), t.shape[-1]) for t in free]
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

    def check_overrides(self) -> None:
        """FormatError if an override decided no matrix."""
        if not self._unused:
            return
        i = min(self._unused)
        overrides = self._recipe.overrides
        pattern = overrides[i][0]
        matches = [
            t for t in self._model.tensors if self._is_matrix(t) and self._matches(pattern, t)
        ]
        wanted = f"{self._model.path}: expected matrices whose names match {pattern!r}, found"
        if not matches:
            some = next((t.name for t in self._model.tensors if self._is_matrix(t)), "")
            raise FormatError(f"{wanted} none, only {some!r} etc.; 'pyflow inspect' lists all")
        for earlier, _ in overrides[:i]:
            if taken := [t.name for t in matches if self._matches(earlier, t)]:
                raise FormatError(
                    f"{wanted} only {taken[0]!r}, which the earlier {earlier!r} matches too; put "
                    "the narrower pattern first"
                )
        raise FormatError(
            f"{wanted} only {matches[0].name!r}, which --keep-output keeps; leave one out"
        )


def _importance(imatrix: Imatrix, tensor: Tensor, part: Part) -> NDArray[np.float32] | None:
    n_matrices, n_cols = math.prod(tensor.shape[:-2]), tensor.shape[-1]
    return imatrix.of(part.name, n_matrices, n_cols, part.expert)


def _nbytes(tensor: Tensor, name: str) -> int:
    """The tensor's size in the format."""
    return math.prod(tensor.shape) // FORMATS[name].block * FORMATS[name].block_bytes


def _is_float_matrix(tensor: Tensor) -> bool:
    form = read_as(tensor.dtype)
    return len(tensor.shape) > 1 and form is not None and form.block == 1


def _check_source(model: Weights, tensor: Tensor, recipe: Recipe) -> None:
    form = read_as(tensor.dtype)
    if form is None:
        raise _unreadable(model, tensor)
    if form.block > 1 and not recipe.allow_requantize:
        raise UnsupportedError(
            f"{model.path}: tensor {tensor.name!r}: expected F32, F16 or BF16, found {form.name}: "
            "errors would add up; use an F16 file or --allow-requantize"
        )


def _unreadable(model: Weights, tensor: Tensor) -> UnsupportedError:
    return UnsupportedError(
        f"{model.path}: tensor {tensor.name!r}: expected a type that this build can read, found "
        f"{tensor.dtype}; use an F16 file"
    )
