"""A folder's model as a GGUF file: metadata, tensors, tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from pyflow.errors import FormatError, PyflowError, UnsupportedError
from pyflow.formats import Checkpoint, gguf_writer
from pyflow.gguf_export.metadata import Entry, scaling, sizes
from pyflow.gguf_export.same_model import differences
from pyflow.gguf_export.tensor import GgufTensor
from pyflow.gguf_export.tensors import Planned, fill, plan
from pyflow.gguf_export.tokenizer import tokenizer_metadata
from pyflow.quant.convert import DEFAULTS, Options, Share, write_gguf
from pyflow.quant.plan import Recipe
from pyflow.specs import describe
from pyflow.specs.bind.binding import Place
from pyflow.specs.bind.build import Built, build
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.document import architecture, family, label, load
from pyflow.specs.language.facts import Facts, GgufSource
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import Ref
from pyflow.tokenizer.ours.gguf import NO_VOCAB

# Of the architectures with windows, those whose windows llama.cpp computes.
_WINDOWED = frozenset({"gemma2", "gemma3"})


@dataclass(frozen=True, slots=True)
class GgufModel:
    """metadata: everything but the keys on the types of tensors, such as general.file_type."""

    path: Path
    """The folder's checkpoint."""
    metadata: Mapping[str, Entry]
    tensors: Sequence[GgufTensor]
    notes: Sequence[str] = ()
    """What the file lacks, or what other programs do differently with it."""

    def rows(self, name: str) -> GgufTensor:
        """The tensor of this name, whose rows are read on demand."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def release(self, name: str, begin: int, end: int) -> None:
        """Unmaps rows [begin, end) of a tensor; they may be read again."""
        self.rows(name).release(begin, end)

    def write(
        self, target: str | PathLike[str], recipe: Recipe, options: Options = DEFAULTS
    ) -> dict[str, Share]:
        """Writes the GGUF file `target`, like pyflow.quant.convert.convert."""
        entries = {key: gguf_writer.entry(value) for key, value in self.metadata.items()}
        return write_gguf(self, entries, target, recipe, options)


def to_gguf(checkpoint: Checkpoint) -> GgufModel:
    """The GGUF file of a folder's model; no weights are read yet.

    A model without tokenizer files has none in GGUF either. FormatError, SpecError, ShapeError: as
    when the checkpoint is loaded. UnsupportedError: names what GGUF cannot express.
    """
    if checkpoint.format == "GGUF":
        raise UnsupportedError(f"{checkpoint.path}: expected a folder's model, found a GGUF file")
    description = describe(checkpoint)
    spec = description.spec
    if spec.is_encoder or spec.source:
        raise UnsupportedError(
            f"{checkpoint.path}: encoders are not written as GGUF yet; give OUT without .gguf, and "
            "it becomes a folder"
        )
    if any(isinstance(block, Mla) for block in spec.blocks()):
        raise UnsupportedError(
            f"{checkpoint.path}: latent attention is not written as GGUF yet; give OUT without "
            ".gguf, and it becomes a folder"
        )
    name = architecture(description.document.path)
    if name is None:
        raise UnsupportedError(
            f"{checkpoint.path}: {label(description.document.path)} has no gguf.architecture, "
            "the name of such models in GGUF"
        )
    document = load(family("gguf", name, str(checkpoint.path)), "gguf")
    metadata: dict[str, Entry] = {
        "general.architecture": name,
        "general.type": "model",
        "general.name": spec.name,
        f"{name}.vocab_size": spec.n_vocab,
    }
    keys, scaled = sizes(description, document), scaling(description, document)
    metadata |= {f"{name}.{key}": value for key, value in (keys | scaled.keys).items()}
    source = GgufSource(checkpoint.path, metadata)
    facts = Facts(document["facts"], source)
    head: tuple[Place, str] = (Place(), "head")
    tied = _are_one(checkpoint, spec.head.weight, spec.embedding.weight)
    if tied:
        spec = replace(spec, head=replace(spec.head, weight=spec.embedding.weight))
    planned = plan(description, document, facts, but=[head] if tied else [])
    planned |= {t: Planned((len(values),), given=values) for t, values in scaled.tensors.items()}

    def read_tensor(tensor: str, n: int) -> Sequence[float]:
        found = planned[tensor].given
        if len(found) != n:
            raise FormatError(f"{checkpoint.path}: {tensor}: expected {n} values")
        return [float(x) for x in found]

    records = {t: _Record(t, "F32", p.shape) for t, p in planned.items()}
    facts = Facts(document["facts"], source, records.keys())
    try:
        built = build(document, source, facts, records, read_tensor, f"{name} as GGUF has it")
    except PyflowError as error:
        raise UnsupportedError(f"{checkpoint.path}: cannot be written as GGUF: {error}") from None
    other = _spec_of(built, checkpoint, name)
    if found := next(iter(differences(spec, other)), None):
        raise UnsupportedError(
            f"{checkpoint.path}: cannot be written as GGUF, whose {name} models have another "
            f"{found}"
        )
    tensors = fill(planned, checkpoint, description.built, built, spec, other)
    metadata |= tokenizer_metadata(description)
    return GgufModel(checkpoint.path, metadata, tensors, [*_notes(spec, metadata)])


def _notes(spec: ModelSpec, metadata: Mapping[str, Entry]) -> Iterator[str]:
    if metadata["tokenizer.ggml.model"] == NO_VOCAB:
        yield "the model has no tokenizer: its GGUF file takes only token ids"
    name = str(metadata["general.architecture"])
    blocks = (block for layer in spec.layers for block in layer)
    windows = {b.window for b in blocks if isinstance(b, Attention)}
    shorter = [window for window in windows if 0 < window < spec.n_ctx_train]
    if shorter and name not in _WINDOWED:
        first = min(shorter)
        yield (
            f"llama.cpp ignores {name}.attention.sliding_window: its results differ from position "
            f"{first} on, as layers of this model see only the {first} newest positions"
        )


def _are_one(checkpoint: Checkpoint, head: Ref, embedding: Ref) -> bool:
    """Whether two names are one tensor, as torch.save writes tied models."""
    if not (isinstance(head, str) and isinstance(embedding, str)):
        return False
    a, b = checkpoint.native.tensor(head), checkpoint.native.tensor(embedding)
    return (a.source, a.offset, a.shape, a.strides) == (b.source, b.offset, b.shape, b.strides)


@dataclass(frozen=True, slots=True)
class _Record:
    """A row of the planned file's tensor table."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def _spec_of(built: Built, checkpoint: Checkpoint, name: str) -> ModelSpec:
    if built.problems or built.spec is None:
        found = "; ".join([p.text for p in built.problems[:2]] or built.unsupported)
        raise UnsupportedError(
            f"{checkpoint.path}: cannot be written as GGUF, whose {name} models have other "
            f"tensors: {found}"
        )
    return built.spec
