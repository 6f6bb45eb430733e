"""Quantize a whole model into a GGUF file, tensor by tensor; `folder` writes folders.

    convert("f16.gguf", "q4.gguf", Recipe("Q4_K_M"))
    to_gguf(formats.open("folder")).write("q4.gguf", Recipe("Q4_K_M"))     # of pyflow.gguf_export

Tensors pass through memory in pieces of some megabytes, whatever the size of the model; `plan`
decides which tensor gets which format. Metadata is copied byte for byte, except the keys that
describe tensor types.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import arrays, gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.formats.tensor_writer import TensorWriter
from pyflow.quant import mixes
from pyflow.quant.blocks import FIRST_OWN_ID, FORMATS, Distortion
from pyflow.quant.imatrix import Imatrix, Moments
from pyflow.quant.plan import Recipe, Step, plan
from pyflow.quant.weights import Tensor, Weights

from pyflow import _core, formats
from pyflow.errors import PyflowError, ResourceError, UnsupportedError, VariableError

# Weights per piece: enough to keep all threads busy; 16 MB of F32.
_PIECE = 1 << 22
# A tensor is lost if its squared error exceeds this part of its squared weights. Two bits lose an
# eighth of normally distributed weights.
_LOST = 0.8
_MAX_FEEDBACKS = 3  # kept at a time; some ten megabytes each
_QUANTIZATION_VERSION = 2  # of GGML's blocks
# Lists our own formats in a file; other programs refuse them by their type numbers.
_FORMATS_KEY = "pyflow.formats"
_SPLIT = ("split.no", "split.count", "split.tensors.count")


@dataclass(slots=True)
class Share:
    """Size and error of all tensors of one role. Errors cover converted tensors only: w is a
    weight's importance (1 without an imatrix), x its value before, d its change."""

    n_tensors: int = 0
    n_weights: int = 0
    nbytes: int = 0
    types: dict[str, int] = field(default_factory=dict)
    """Number of tensors by their new type."""
    squared: float = 0.0
    """Sum of w d^2."""
    power: float = 0.0
    """Sum of w x^2."""
    absolute: float = 0.0
    """Sum of |d|."""
    largest: float = 0.0
    """Largest |d|."""
    n_converted: int = 0
    """Weights that were converted."""
    lost: list[str] = field(default_factory=list)
    """Tensors lost entirely: their values underflow the format's f16 scale."""

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
        self.lost += other.lost


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is written, apart from what the recipe says."""

    imatrix: Imatrix | None = None
    n_threads: int = 1
    progress: Callable[[int, int], None] | None = None
    """Called with the number of weights done and the total."""
    on_plan: Callable[[list[Step]], None] | None = None
    """Called with the plan before anything is written."""
    replace: bool = True
    """Replace the target if it exists; otherwise that is a PyflowError."""


DEFAULTS = Options()


def convert(
    source: str | PathLike[str],
    target: str | PathLike[str],
    recipe: Recipe,
    options: Options = DEFAULTS,
) -> dict[str, Share]:
    """Quantizes source, a GGUF file or the first part of a split one, into the GGUF file `target`.

    Returns a Share per role (`mixes.role_of`). The file is written under a temporary name and
    renamed at the end; on any error an existing target stays untouched.

    FormatError: source is not a GGUF file. UnsupportedError: weights are quantized already, or the
    type cannot hold them. ShapeError: an override's blocks do not divide the rows. ResourceError:
    too little disk space. PyflowError: target is the source, or appeared or changed meanwhile.
    """
    checkpoint = formats.open(source)
    if checkpoint.format != "GGUF":
        raise UnsupportedError(
            f"{checkpoint.path}: expected a GGUF file, found {checkpoint.format}; "
            "pyflow.gguf_export makes GGUF files of folders"
        )
    target = Path(target)
    if target.exists() and any(target.samefile(path) for path in checkpoint.native.files):
        raise PyflowError(f"{target}: expected a file other than the source; give another name")
    first = _core.GgufFile(checkpoint.native.files[0])
    return write_gguf(
        checkpoint,
        {key: value for key, value in first.entries if key not in _SPLIT},
        target,
        recipe,
        options,
        alignment=first.alignment,
    )


def write_gguf(
    model: Weights,
    entries: Mapping[str, bytes],
    target: str | PathLike[str],
    recipe: Recipe,
    options: Options = DEFAULTS,
    *,
    alignment: int = gguf_writer.DEFAULT_ALIGNMENT,
) -> dict[str, Share]:
    """Quantizes a model with GGUF's tensors into the GGUF file `target`, like `convert`.

    entries: metadata as `gguf_writer.entry` encodes it; keys that describe types are added.
    """
    target = Path(target)
    steps = plan(model, recipe, options.imatrix)
    announce(steps, target, options)
    entries = _entries(entries, steps, recipe, options.imatrix)
    tensors = [
        gguf_writer.NewTensor(step.tensor.name, step.tensor.shape, _type_id(step), step.nbytes)
        for step in steps
    ]
    with replacing(target, replace=options.replace) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors, alignment=alignment)
        return write_tensors(model, steps, writer, options)


def announce(steps: list[Step], target: Path, options: Options) -> None:
    """Calls on_plan; ResourceError if the disk of `target` has no room for the result."""
    if options.on_plan is not None:
        options.on_plan(steps)
    check_disk(target, sum(step.nbytes for step in steps))


def write_tensors(
    model: Weights,
    steps: Sequence[Step],
    writer: TensorWriter,
    options: Options,
) -> dict[str, Share]:
    """Writes all tensors as planned, in the order of the steps; returns a Share per role.

    UnsupportedError: a type cannot hold the weights.
    """
    pool = _core.ThreadPool(options.n_threads) if options.n_threads > 1 else None
    shares: dict[str, Share] = {}
    feedbacks = _Feedbacks(pool)
    done, total = 0, sum(math.prod(step.tensor.shape) for step in steps)
    for step in steps:
        share = shares.setdefault(step.role, Share())
        own = Share(1, math.prod(step.tensor.shape), step.nbytes, {step.to: 1})
        for data, n_weights, errors in _pieces(step, model, pool, feedbacks):
            writer.write(data)
            own.add(errors)
            done += n_weights
            if options.progress is not None:
                options.progress(done, total)
        writer.end_tensor()
        if own.power > 0.0 and own.squared > _LOST * own.power:
            own.lost.append(step.tensor.name)
        share.add(own)
    writer.close()
    return shares


class _Feedbacks:
    """The feedback of recent inputs: q, k and v of a layer share one, and so do gate and up."""

    def __init__(self, pool: _core.ThreadPool | None) -> None:
        self._pool = pool
        self._latest: dict[str, _core.Feedback] = {}

    def of(self, moments: Moments | None) -> _core.Feedback | None:
        if moments is None:
            return None
        if moments.name not in self._latest:
            while len(self._latest) >= _MAX_FEEDBACKS:
                del self._latest[next(iter(self._latest))]
            self._latest[moments.name] = moments.feedback(self._pool)
        else:
            moments.check()
        return self._latest[moments.name]


def check_disk(target: Path, nbytes: int) -> None:
    """ResourceError if the disk of `target` has fewer than nbytes free."""
    free = shutil.disk_usage(target.parent).free
    if nbytes > free:
        raise ResourceError(
            f"{target}: expected {nbytes:,} free bytes on its disk, found {free:,}; delete files "
            "or choose another disk"
        )


def _type_id(step: Step) -> int:
    """The type's number in GGUF."""
    if step.copied:
        assert step.tensor.type_id is not None  # GGUF's tensors have one
        return step.tensor.type_id
    return FORMATS[step.to].gguf_id


def _entries(
    given: Mapping[str, bytes], steps: list[Step], recipe: Recipe, imatrix: Imatrix | None
) -> dict[str, bytes]:
    """The metadata: as given, except the keys that describe types and importance."""
    entries = dict(given)
    entries["general.file_type"] = gguf_writer.entry(mixes.TYPES[recipe.type].file_type)
    if any(FORMATS[step.to].block > 1 for step in steps if step.to in FORMATS):
        entries["general.quantization_version"] = gguf_writer.entry(_QUANTIZATION_VERSION)
    else:
        entries.pop("general.quantization_version", None)
    entries.pop(_FORMATS_KEY, None)
    if own := sorted({step.to for step in steps if _type_id(step) >= FIRST_OWN_ID}):
        entries[_FORMATS_KEY] = gguf_writer.entry(own)
    if imatrix is not None:
        measured = sum(step.importance is not None for step in steps)
        entries["quantize.imatrix.file"] = gguf_writer.entry(imatrix.path.name)
        entries["quantize.imatrix.entries_count"] = gguf_writer.entry(measured)
        if with_moments := sum(step.moments is not None for step in steps):
            entries["pyflow.moments.entries_count"] = gguf_writer.entry(with_moments)
        entries["quantize.imatrix.chunks_count"] = gguf_writer.entry(imatrix.n_chunks)
        if imatrix.datasets:
            entries["quantize.imatrix.dataset"] = gguf_writer.entry(imatrix.datasets[0])
    return entries


def _pieces(
    step: Step, model: Weights, pool: _core.ThreadPool | None, feedbacks: _Feedbacks
) -> Iterator[tuple[NDArray[np.uint8], int, Share]]:
    """Yields the tensor's new bytes in pieces, with the number of weights and their errors.

    Pages of the source are released after each piece, so that memory does not grow.
    """
    tensor = step.tensor
    if not tensor.nbytes:
        return
    rows = model.rows(tensor.name)
    n_cols = math.prod(tensor.shape) // len(rows)
    # Each expert's matrix has its own importance, so a piece never crosses into the next matrix.
    n_own = len(rows) // len(step.importance) if step.importance is not None else len(rows)
    at_once = max(1, _PIECE // n_cols)
    feedback = feedbacks.of(step.moments)
    for first in range(0, len(rows), n_own):
        for begin in range(first, first + n_own, at_once):
            end = min(begin + at_once, first + n_own)
            piece = np.ascontiguousarray(rows[begin:end]).reshape(-1).view(np.uint8)
            n_weights = (end - begin) * n_cols
            if step.copied:
                yield piece, n_weights, Share()
            else:
                importance = None if step.importance is None else step.importance[begin // n_own]
                with _naming(tensor):
                    dtype = tensor.dtype
                    if dtype == "F64":
                        dtype, piece = "F32", arrays.rounded(piece.view("<f8")).view(np.uint8)
                    blocks = _core.Requantizer(dtype, step.to, n_cols, importance, feedback)
                    out, sums = blocks.run(piece, begin, pool)
                yield out, n_weights, Share(0, 0, 0, {}, *sums, n_converted=n_weights)
            model.release(tensor.name, begin, end)
    model.release(tensor.name, 0, len(rows))


@contextlib.contextmanager
def _naming(tensor: Tensor) -> Iterator[None]:
    try:
        yield
    except VariableError:  # no tensor is to blame
        raise
    except PyflowError as error:
        raise type(error)(f"{tensor.source}: tensor {tensor.name!r}: {error}") from None
