"""A whole model into a GGUF file of another type, tensor by tensor; `folder` writes folders.

    convert("f16.gguf", "q4.gguf", Recipe("Q4_K_M"))
    to_gguf(formats.open("folder")).write("q4.gguf", Recipe("Q4_K_M"))     # of pyflow.gguf_export

The tensors go through memory in pieces of some megabytes, whatever the size of the model; `plan`
says which tensor gets which format. Metadata is kept byte for byte, but for what tells the types.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.formats.tensor_writer import TensorWriter
from pyflow.quant import mixes
from pyflow.quant.blocks import FIRST_OWN_ID, FORMATS, Distortion
from pyflow.quant.imatrix import Imatrix, Moments
from pyflow.quant.plan import Recipe, Step, plan
from pyflow.quant.weights import Tensor, Weights

from pyflow import _core, formats
from pyflow.errors import PyflowError, ResourceError, UnsupportedError, VariableError

# Weights at once: enough to keep threads busy, 16 MB of the largest format.
_PIECE = 1 << 22
_ALL = 0.8  # of the squares of weights; two bits lose an eighth of normal ones
_LATEST = 3  # inputs whose feedback is kept, of some ten megabytes each
_QUANTIZATION_VERSION = 2  # of GGML's blocks
# Names the formats of ours that a file holds, which other programs refuse by their numbers.
_FORMATS_KEY = "pyflow.formats"
_SPLIT = ("split.no", "split.count", "split.tensors.count")


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
    lost: list[str] = field(default_factory=list)
    """Tensors whose errors are as large as what they had: their values are below all that scales
    of the type can say."""

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


class Options(TypedDict, total=False):
    """What `convert` can be told besides."""

    imatrix: Imatrix | None
    n_threads: int
    progress: Callable[[int, int], None] | None
    """Called with weights done and in all."""
    told: Callable[[list[Step]], None] | None
    """Called with the plan before anything is written."""
    replace: bool
    """Whether what is there as the target may go, as it does by default."""


def convert(
    source: str | PathLike[str],
    target: str | PathLike[str],
    recipe: Recipe,
    **options: Unpack[Options],
) -> dict[str, Share]:
    """Writes source, a GGUF file or the first of a split one, as `target`; what each role came to.

    target is written beside itself and takes its place at the end, so whatever was there stays if
    anything goes wrong, and so does what has come there meanwhile, which is a PyflowError.

    FormatError: no GGUF file. UnsupportedError: weights that are quantized already, or that the
    type cannot hold. ShapeError: an override whose blocks do not fit. ResourceError: the disk is
    too full.
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
        alignment=first.alignment,
        **options,
    )


def write_gguf(
    model: Weights,
    entries: Mapping[str, bytes],
    target: str | PathLike[str],
    recipe: Recipe,
    *,
    alignment: int = gguf_writer.DEFAULT_ALIGNMENT,
    imatrix: Imatrix | None = None,
    n_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    told: Callable[[list[Step]], None] | None = None,
    replace: bool = True,
) -> dict[str, Share]:
    """Writes a model whose tensors are those of a GGUF file as `target`, with metadata as of
    gguf_writer.entry, to which what tells the types is added. Otherwise as `convert`."""
    target = Path(target)
    steps = plan(model, recipe, imatrix)
    if told is not None:
        told(steps)
    check_disk(target, sum(step.nbytes for step in steps))
    entries = _entries(entries, steps, recipe, imatrix)
    tensors = [
        gguf_writer.NewTensor(step.tensor.name, step.tensor.shape, _type_id(step), step.nbytes)
        for step in steps
    ]
    with replacing(target, replace=replace) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors, alignment=alignment)
        return write_tensors(model, steps, writer, n_threads=n_threads, progress=progress)


def write_tensors(
    model: Weights,
    steps: Sequence[Step],
    writer: TensorWriter,
    *,
    n_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Share]:
    """Gives the writer all tensors as planned, in the order of the steps; what each role came to.

    progress: called with weights done and in all. UnsupportedError: weights that a type cannot
    hold.
    """
    pool = _core.ThreadPool(n_threads) if n_threads > 1 else None
    shares: dict[str, Share] = {}
    feedbacks = _Feedbacks(pool)
    done, total = 0, sum(math.prod(step.tensor.shape) for step in steps)
    for step in steps:
        share = shares.setdefault(step.role, Share())
        own = _counted(step)
        for data, n_weights, lost in _pieces(step, model, pool, feedbacks):
            writer.write(data)
            own.add(lost)
            done += n_weights
            if progress is not None:
                progress(done, total)
        writer.end_tensor()
        if own.power > 0.0 and own.squared > _ALL * own.power:
            own.lost.append(step.tensor.name)
        share.add(own)
    writer.close()
    return shares


class _Feedbacks:
    """Those of a layer's matrices, of which several have one input."""

    def __init__(self, pool: _core.ThreadPool | None) -> None:
        self._pool = pool
        self._latest: dict[str, _core.Feedback] = {}

    def of(self, moments: Moments | None) -> _core.Feedback | None:
        if moments is None:
            return None
        if moments.name not in self._latest:
            while len(self._latest) >= _LATEST:
                del self._latest[next(iter(self._latest))]
            self._latest[moments.name] = moments.feedback(self._pool)
        else:
            moments.check()
        return self._latest[moments.name]


def check_disk(target: Path, nbytes: int) -> None:
    """ResourceError where the disk of a file that is to be written has less than nbytes free."""
    free = shutil.disk_usage(target.parent).free
    if nbytes > free:
        raise ResourceError(f"{target}: expected {nbytes:,} free bytes on its disk, found {free:,}")


def _type_id(step: Step) -> int:
    """The type's number in GGUF."""
    if step.copied:
        assert step.tensor.type_id is not None  # as in every GGUF file, and what will be one
        return step.tensor.type_id
    return FORMATS[step.to].gguf_id


def _entries(
    given: Mapping[str, bytes], steps: list[Step], recipe: Recipe, imatrix: Imatrix | None
) -> dict[str, bytes]:
    """The metadata: as given, but for what tells the types."""
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


def _counted(step: Step) -> Share:
    n_weights = math.prod(step.tensor.shape)
    return Share(1, n_weights, step.nbytes, {step.to: 1})


def _pieces(
    step: Step, model: Weights, pool: _core.ThreadPool | None, feedbacks: _Feedbacks
) -> Iterator[tuple[NDArray[np.uint8], int, Share]]:
    """The tensor's new bytes, how many weights they are, and what was lost of these.

    Pages of files that have been read are given back, so that they do not add up.
    """
    tensor = step.tensor
    if not tensor.nbytes:
        return
    rows = model.rows(tensor.name)
    n_cols = math.prod(tensor.shape) // len(rows)
    # Where importance differs from matrix to matrix, pieces end with a matrix.
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
                    out, sums = _core.requantize(
                        tensor.dtype, piece, n_cols, step.to, importance, begin, pool, feedback
                    )
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
