"""A whole GGUF file into another type, tensor by tensor.

    convert("f16.gguf", "q4.gguf", Recipe("Q4_K_M"))

The tensors go through memory in pieces of some megabytes, whatever the size of the model; `mixes`
says which tensor gets which format. Metadata is kept byte for byte, but for what tells the types.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.quant import budget, mixes
from pyflow.quant.blocks import FIRST_OWN_ID, FORMATS, Distortion
from pyflow.quant.imatrix import Imatrix

from pyflow import _core, formats
from pyflow.errors import FormatError, PyflowError, ResourceError, ShapeError, UnsupportedError

# Weights at once: enough to keep threads busy, 16 MB of the largest format.
_PIECE = 1 << 22
_QUANTIZATION_VERSION = 2  # of GGML's blocks
# Names the formats of ours that a file holds, which other programs refuse by their numbers.
_FORMATS_KEY = "pyflow.formats"
_SPLIT = ("split.no", "split.count", "split.tensors.count")


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

    tensor: _core.TensorRecord
    to: str
    """The name of its type afterwards."""
    type_id: int
    nbytes: int
    instead_of: str | None = None
    """The format that its rows, no whole blocks of it, ruled out."""
    importance: NDArray[np.float32] | None = None
    """(matrices, columns)"""

    @property
    def copied(self) -> bool:
        return self.to == self.tensor.dtype


@dataclass(slots=True)
class Share:
    """All tensors of one role. Errors are of those that were converted, d their differences."""

    n_tensors: int = 0
    n_weights: int = 0
    nbytes: int = 0
    types: dict[str, int] = field(default_factory=dict)
    """Tensors by the type they have now."""
    squared: float = 0.0
    """Sum of w d^2, w the importance or 1."""
    power: float = 0.0
    """Sum of w x^2 of the weights before."""
    absolute: float = 0.0
    largest: float = 0.0
    n_converted: int = 0
    """Weights."""

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.n_weights if self.n_weights else 0.0

    @property
    def distortion(self) -> Distortion:
        n = max(self.n_converted, 1)
        relative = self.squared / self.power if self.power else math.inf if self.squared else 0.0
        return Distortion(self.squared / n, relative, self.absolute / n, self.largest)

    def add(self, other: Share) -> None:
        for name, count in other.types.items():
            self.types[name] = self.types.get(name, 0) + count
        self.n_tensors += other.n_tensors
        self.n_weights += other.n_weights
        self.nbytes += other.nbytes
        self.squared += other.squared
        self.power += other.power
        self.absolute += other.absolute
        self.largest = max(self.largest, other.largest)
        self.n_converted += other.n_converted


def convert(
    source: str | PathLike[str],
    target: str | PathLike[str],
    recipe: Recipe,
    *,
    imatrix: Imatrix | None = None,
    n_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    told: Callable[[list[Step]], None] | None = None,
) -> dict[str, Share]:
    """Writes source, a GGUF file or the first of a split one, as `target`; what each role came to.

    target is written beside itself and takes its place at the end, so whatever was there stays if
    anything goes wrong. progress: called with weights done and in all. told: called with the plan
    before anything is written.

    FormatError: no GGUF file. UnsupportedError: weights that are quantized already, or that the
    type cannot hold. ShapeError: an override whose blocks do not fit. ResourceError: the disk is
    too full.
    """
    checkpoint = formats.open(source)
    if checkpoint.format != "GGUF":
        raise UnsupportedError(
            f"{checkpoint.path}: expected a GGUF file, found {checkpoint.format}; only GGUF files "
            "hold what the result must say of model and tokenizer"
        )
    files = {str(path): _core.GgufFile(path) for path in checkpoint.native.files}
    target = Path(target)
    if target.exists() and any(target.samefile(path) for path in files):
        raise PyflowError(f"{target}: expected a file other than the source; give another name")
    steps = plan(checkpoint, recipe, imatrix)
    if told is not None:
        told(steps)
    check_disk(target, sum(step.nbytes for step in steps))
    first = next(iter(files.values()))
    entries = _entries(first, steps, recipe, imatrix)
    tensors = [
        gguf_writer.NewTensor(step.tensor.name, step.tensor.shape, step.type_id, step.nbytes)
        for step in steps
    ]
    pool = _core.ThreadPool(n_threads) if n_threads > 1 else None
    shares: dict[str, Share] = {}
    done, total = 0, sum(math.prod(step.tensor.shape) for step in steps)
    with gguf_writer.replacing(target) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors, alignment=first.alignment)
        for step in steps:
            share = shares.setdefault(mixes.role_of(step.tensor.name), Share())
            share.add(_counted(step))
            for data, n_weights, lost in _pieces(step, files[step.tensor.source], pool):
                writer.write(data)
                share.add(lost)
                done += n_weights
                if progress is not None:
                    progress(done, total)
            writer.end_tensor()
        writer.close()
    return shares


def plan(checkpoint: formats.Checkpoint, recipe: Recipe, imatrix: Imatrix | None) -> list[Step]:
    """What would become of each tensor, in the file's order."""
    if checkpoint.metadata.get("general.type") == "imatrix":
        raise FormatError(
            f"{checkpoint.path}: expected a model, found an importance matrix; it goes with "
            "--imatrix"
        )
    mix = mixes.TYPES[recipe.type]
    family = checkpoint.metadata.get("general.architecture")
    heads = _number(checkpoint.metadata.get(f"{family}.attention.head_count"))
    key_heads = _number(checkpoint.metadata.get(f"{family}.attention.head_count_kv")) or heads
    gqa = heads // key_heads if key_heads else 1
    n_experts = _number(checkpoint.metadata.get(f"{family}.expert_count"))
    names = {t.name for t in checkpoint.tensors}
    output = "output.weight" if "output.weight" in names else "token_embd.weight"
    layers: dict[str, list[int]] = {}
    for name in names:
        if (layer := mixes.layer_of(name)) is not None:
            layers.setdefault(mixes.role_of(name), []).append(layer)
    layers = {role: sorted(found) for role, found in layers.items()}
    unused = set(range(len(recipe.overrides)))

    def asked_for(tensor: _core.TensorRecord) -> str | None:
        """The format that an override names."""
        for i, (pattern, name) in enumerate(recipe.overrides):
            if re.search(pattern, tensor.name):
                unused.discard(i)
                return name
        return None

    def stays(tensor: _core.TensorRecord) -> bool:
        return not mixes.is_matrix(tensor.name, tensor.shape) or (
            recipe.keep_output and tensor.name == output
        )

    def by_rules(mix: mixes.Mix, tensor: _core.TensorRecord) -> str:
        role, layer = mixes.role_of(tensor.name), mixes.layer_of(tensor.name)
        if recipe.pure or FORMATS[mix.base].block == 1:
            return mix.base
        if tensor.name == output:
            return mixes.of_output(mix.base)
        place = (layers[role].index(layer), len(layers[role])) if layer is not None else (0, 1)
        return mixes.choose(mix, role, place, gqa=gqa, n_experts=n_experts)

    shared_out: dict[str, str] = {}
    if mix.within is not None and not recipe.pure:
        free = [t for t in checkpoint.tensors if not stays(t) and asked_for(t) is None]
        same = mixes.TYPES[mix.within]
        names_there = [mixes.fitting(by_rules(same, t), t.shape[-1]) for t in free]
        nbytes = sum(map(_nbytes, free, names_there))
        shared_out = budget.share_out(_by_role(free, output), nbytes)

    def wanted(tensor: _core.TensorRecord) -> str:
        return shared_out.get(mixes.role_of(tensor.name)) or by_rules(mix, tensor)

    steps = []
    for tensor in checkpoint.tensors:
        if stays(tensor):
            steps.append(_kept(tensor))
            continue
        asked = asked_for(tensor)
        name = asked or wanted(tensor)
        fitting = mixes.fitting(name, tensor.shape[-1])
        if asked and fitting != name:
            raise ShapeError(
                f"{checkpoint.path}: tensor {tensor.name!r}: expected rows of a multiple of "
                f"{FORMATS[name].block} weights for {name}, found {tensor.shape[-1]}; "
                f"{fitting} would fit"
            )
        if fitting == tensor.dtype:
            steps.append(_kept(tensor))
            continue
        _check_source(checkpoint, tensor, recipe)
        n_matrices = math.prod(tensor.shape[:-2])
        to = FORMATS[fitting]
        steps.append(
            Step(
                tensor,
                fitting,
                to.gguf_id,
                _nbytes(tensor, fitting),
                instead_of=name if fitting != name else None,
                importance=imatrix.of(tensor.name, n_matrices, tensor.shape[-1])
                if imatrix is not None and to.block > 1
                else None,
            )
        )
    if unused:
        raise _without_use(checkpoint, recipe, min(unused))
    if imatrix is not None and all(step.importance is None for step in steps):
        raise FormatError(
            f"{imatrix.path}: expected importance of matrices of {checkpoint.path}, found that of "
            f"{', '.join(sorted(imatrix.columns)[:2])} and the like"
        )
    return steps


def _without_use(checkpoint: formats.Checkpoint, recipe: Recipe, i: int) -> FormatError:
    """Of the override of that number, which gave no matrix its format."""
    pattern = recipe.overrides[i][0]
    matches = [
        t.name
        for t in checkpoint.tensors
        if mixes.is_matrix(t.name, t.shape) and re.search(pattern, t.name)
    ]
    wanted = f"{checkpoint.path}: expected matrices whose names match {pattern!r}, found"
    if not matches:
        return FormatError(f"{wanted} none; 'pyflow inspect' lists the names")
    for earlier, _ in recipe.overrides[:i]:
        if taken := [name for name in matches if re.search(earlier, name)]:
            return FormatError(
                f"{wanted} only such as {taken[0]!r}, which the earlier {earlier!r} takes; "
                "give the one that matches less first"
            )
    return FormatError(f"{wanted} only {matches[0]!r}, which --keep-output keeps; leave one out")


def _nbytes(tensor: _core.TensorRecord, name: str) -> int:
    """Of the tensor in that format."""
    return math.prod(tensor.shape) // FORMATS[name].block * FORMATS[name].block_bytes


def _by_role(tensors: list[_core.TensorRecord], output: str) -> dict[str, budget.Matrices]:
    found: dict[str, budget.Matrices] = {}
    for tensor in tensors:
        role = mixes.role_of(tensor.name)
        before = found.get(role, budget.Matrices(0, 0))
        found[role] = budget.Matrices(
            before.n_weights + math.prod(tensor.shape),
            math.gcd(before.n_cols, tensor.shape[-1]),
            tied=tensor.name == output and role == "token_embd",
        )
    return found


def _number(value: Any) -> int:
    """A count of the metadata; of one for each layer the largest; 0 where there is none."""
    if isinstance(value, np.ndarray) and value.size:
        value = int(value.max())
    return value if isinstance(value, int) else 0


def _kept(tensor: _core.TensorRecord) -> Step:
    assert tensor.type_id is not None  # as in every GGUF file
    return Step(tensor, tensor.dtype, tensor.type_id, tensor.nbytes)


def _check_source(
    checkpoint: formats.Checkpoint, tensor: _core.TensorRecord, recipe: Recipe
) -> None:
    form = FORMATS.get(tensor.dtype)
    if form is None:
        raise UnsupportedError(
            f"{checkpoint.path}: tensor {tensor.name!r}: expected a type that this build can read, "
            f"found {tensor.dtype}; take a file in F16"
        )
    if form.block > 1 and not recipe.allow_requantize:
        raise UnsupportedError(
            f"{checkpoint.path}: tensor {tensor.name!r}: expected weights that have not been "
            f"quantized, found {form.name}, whose errors would add up; take a file in F16, or add "
            "--allow-requantize"
        )


def check_disk(target: Path, nbytes: int) -> None:
    """ResourceError where the disk of a file that is to be written has less than nbytes free."""
    free = shutil.disk_usage(target.parent).free
    if nbytes > free:
        raise ResourceError(f"{target}: expected {nbytes:,} free bytes on its disk, found {free:,}")


def _entries(
    file: _core.GgufFile, steps: list[Step], recipe: Recipe, imatrix: Imatrix | None
) -> dict[str, bytes]:
    """The metadata: as in the file, but for what tells the types."""
    entries = {key: value for key, value in file.entries if key not in _SPLIT}
    entries["general.file_type"] = gguf_writer.entry(mixes.TYPES[recipe.type].file_type)
    if any(FORMATS[step.to].block > 1 for step in steps if step.to in FORMATS):
        entries["general.quantization_version"] = gguf_writer.entry(_QUANTIZATION_VERSION)
    else:
        entries.pop("general.quantization_version", None)
    entries.pop(_FORMATS_KEY, None)
    if own := sorted({step.to for step in steps if step.type_id >= FIRST_OWN_ID}):
        entries[_FORMATS_KEY] = gguf_writer.entry(own)
    if imatrix is not None:
        measured = sum(step.importance is not None for step in steps)
        entries["quantize.imatrix.file"] = gguf_writer.entry(imatrix.path.name)
        entries["quantize.imatrix.entries_count"] = gguf_writer.entry(measured)
        entries["quantize.imatrix.chunks_count"] = gguf_writer.entry(imatrix.n_chunks)
        if imatrix.datasets:
            entries["quantize.imatrix.dataset"] = gguf_writer.entry(imatrix.datasets[0])
    return entries


def _counted(step: Step) -> Share:
    n_weights = math.prod(step.tensor.shape)
    return Share(1, n_weights, step.nbytes, {step.to: 1})


def _pieces(
    step: Step, file: _core.GgufFile, pool: _core.ThreadPool | None
) -> Iterator[tuple[NDArray[np.uint8], int, Share]]:
    """The tensor's new bytes, how many weights they are, and what was lost of these.

    Pages of the file that have been read are given back, so that they do not add up.
    """
    tensor = step.tensor
    data = file.data(tensor.name)
    n_cols = tensor.shape[-1] if tensor.shape else 1
    n_rows = math.prod(tensor.shape) // n_cols
    row_nbytes = tensor.nbytes // n_rows
    # Where importance differs from matrix to matrix, pieces end with a matrix.
    n_own = n_rows // len(step.importance) if step.importance is not None else n_rows
    at_once = max(1, _PIECE // n_cols)
    for first in range(0, n_rows, n_own):
        for begin in range(first, first + n_own, at_once):
            end = min(begin + at_once, first + n_own)
            piece = data[begin * row_nbytes : end * row_nbytes]
            lost = Share()
            if not step.copied:
                importance = None if step.importance is None else step.importance[begin // n_own]
                with _naming(tensor):
                    out, sums = _core.requantize(
                        tensor.dtype, piece, n_cols, step.to, importance, begin, pool
                    )
                lost = Share(0, 0, 0, {}, *sums, n_converted=(end - begin) * n_cols)
                yield out, (end - begin) * n_cols, lost
            else:
                yield piece, (end - begin) * n_cols, lost
            file.release(tensor.offset + begin * row_nbytes, piece.nbytes)
    file.release(tensor.offset, tensor.nbytes)


@contextlib.contextmanager
def _naming(tensor: _core.TensorRecord) -> Iterator[None]:
    try:
        yield
    except PyflowError as error:
        raise type(error)(f"{tensor.source}: tensor {tensor.name!r}: {error}") from None
