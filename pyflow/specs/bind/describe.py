"""Finds the spec of a checkpoint and applies it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyflow.errors import (
    FormatError,
    GenerationWarning,
    ShapeError,
    SpecError,
    UnsupportedError,
)
from pyflow.formats import Checkpoint, arrays, quantized
from pyflow.formats.safetensors_writer import METHOD, VERSION
from pyflow.formats.side_files import is_file
from pyflow.specs.bind import ctranslate2, marian
from pyflow.specs.bind.binding import Problem
from pyflow.specs.bind.build import Built, build
from pyflow.specs.document import Document, family, label, load
from pyflow.specs.grammar import GENERATION, IDS
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import (
    ConfigSource,
    Facts,
    FileSource,
    GgufSource,
    NoSource,
    Source,
    read_config,
)
from pyflow.specs.language.unread import unread_of
from pyflow.specs.language.values import nearest
from pyflow.specs.model_spec import ModelSpec
from pyflow.text import printable

OWN_SPEC, CONFIG = "pyflow.toml", "config.json"
_SHOWN = 3
_SCALINGS = ("rope_scaling", "rope_parameters", "rope.scaling")


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint, its spec, and the model built from both."""

    checkpoint: Checkpoint
    document: Document
    source: Source
    facts: Facts
    built: Built

    @property
    def spec(self) -> ModelSpec:
        """The model. FormatError: tensors are missing. ShapeError: some have the wrong shape.
        UnsupportedError: some are unused, or parts of the model cannot run."""
        path, built = self.checkpoint.path, self.built
        for kind, error, what in (
            ("missing", FormatError, "tensors are missing"),
            ("shape", ShapeError, "tensors have the wrong shape"),
        ):
            texts = [p.text for p in built.problems if p.kind == kind]
            if texts:
                raise error(f"{path}: {_first(texts, what)}{self._advice}")
        unused = sorted(p.tensor for p in built.problems if p.kind == "unused")
        if unused:
            names = ", ".join(f"{printable(n):.100}" for n in unused[:_SHOWN]) + (
                ", ..." if len(unused) > _SHOWN else ""
            )
            raise UnsupportedError(
                f"{path}: {len(unused)} tensors are unused by the {self.document.name} family: "
                f"{names}; the model is a variant that would give wrong results"
            )
        if built.unsupported or built.spec is None:
            raise UnsupportedError(f"{path}: {'; '.join(built.unsupported)}")
        return built.spec

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation, besides those of the tokenizer.

        FormatError, SpecError: they are not token ids. GenerationWarning: config.json has ids past
        the vocabulary, or -1; they are left out.
        """
        given = self.document["tokenizer"].get("stop")
        self.facts.layer = None
        try:
            found = given.resolve(self.facts) if given else None
        except UnresolvedError:
            return ()
        if found is None:
            return ()
        value, n_vocab = found.value, self.spec.n_vocab
        if not found.is_from_spec:
            value = _below(value, n_vocab, found.where)
        ids = IDS.take(value)
        if ids is None or (found.is_from_spec and max(ids, default=0) >= n_vocab):
            raise found.fault(f"{IDS.expected} below {n_vocab}")
        return ids

    @property
    def never(self) -> tuple[int, ...]:
        """Tokens that no search may write: the start, if its row of the embedding is made up."""
        self.facts.layer = None
        try:
            made_up = self.facts.fact("n_zeros")
        except UnresolvedError:
            return ()
        return (self.spec.source.start,) if made_up and self.spec.source else ()

    @property
    def template(self) -> tuple[str, str] | None:
        """A chat template that replaces the checkpoint's own, after the key that holds it."""
        text = self.document["prompt"].get("template")
        return None if text is None else (f"{label(self.document.path)}: prompt.template", text)

    @property
    def generation(self) -> tuple[str, dict[str, Any]]:
        """Default values of SamplingParams and n_predict, unchecked for range, after the table that
        holds them. FormatError, SpecError: one is of the wrong type."""
        table = self.document["generation"]
        self.facts.layer = None
        found = {key: self.facts.value(GENERATION, table, key) for key in table}
        said = {key: value for key, value in found.items() if value is not None}
        return f"{label(self.document.path)}: generation", said

    @property
    def _advice(self) -> str:
        n = len(self.built.problems)
        return f"; 'pyflow spec check {self.checkpoint.path}' lists all" if n > 1 else ""


def _is_zero_bias(checkpoint: Checkpoint, built: Built, problem: Problem) -> bool:
    """Whether a tensor without a role is a bias of zeros beside a matrix, as AutoGPTQ writes them
    for models that have none."""
    name = problem.tensor
    is_bias = problem.kind == "unused" and name.endswith(".bias")
    if not is_bias or name.removesuffix("bias") + "weight" not in built.used:
        return False
    return checkpoint.native.tensor(name).supported and not checkpoint.array(name).any()


def _below(value: Any, n_vocab: int, where: str) -> list[Any]:
    """The token ids of a configuration that are below n_vocab, and what is no token id.
    GenerationWarning: some are not below it, or negative."""
    ids = value if isinstance(value, list) else [value]
    wrong = [i for i in ids if type(i) is int and not 0 <= i < n_vocab]
    if wrong:
        warnings.warn(
            f"{where}: expected token ids from 0 to {n_vocab - 1}, found {wrong!r:.60}; left out",
            GenerationWarning,
            stacklevel=2,
        )
    return [i for i in ids if i not in wrong]


def _first(texts: Sequence[str], what: str) -> str:
    return texts[0] if len(texts) == 1 else f"{len(texts)} {what}: {texts[0]}; ..."


def build_spec(checkpoint: Checkpoint) -> ModelSpec:
    """The `ModelSpec` of a checkpoint. Errors: those of `describe` and of `Description.spec`."""
    return describe(checkpoint).spec


def describe(checkpoint: Checkpoint) -> Description:
    """The description of a checkpoint, which lists problems with its tensors.

    FormatError, SpecError: a value is missing or wrong, or no file names the model's family.
    UnsupportedError: the family or variant is unknown.
    """
    try:
        return _describe(checkpoint)
    except SpecError as error:  # names a family's file: add the checkpoint's
        path = checkpoint.path
        if str(path.parent) in str(error):
            raise
        raise SpecError(f"{path}: {error}") from None


def _describe(checkpoint: Checkpoint) -> Description:
    document, source = _find(checkpoint)
    _check_overrides(checkpoint, document, source)
    tensors = {t.name: t for t in checkpoint.tensors}
    tensors |= {name: tensors[one] for name, one in ctranslate2.aliases(checkpoint).items()}
    facts = Facts(document["facts"], source, tensors.keys(), document["defaults"])

    def read_tensor(name: str, n: int) -> Sequence[float]:
        record = tensors[name]
        where = f"{checkpoint.path}: tensor {printable(name):.100}"
        if record.dtype not in {"F32", "F64"} or record.shape != (n,):
            raise FormatError(
                f"{where}: expected F32 of shape ({n},), found {record.dtype} of {record.shape}"
            )
        try:
            return [float(x) for x in arrays.rounded(checkpoint.array(name))]
        except UnsupportedError as error:
            raise UnsupportedError(f"{where}: {error}") from None

    where = str(checkpoint.path)
    built = build(document, source, facts, tensors, read_tensor, where, checkpoint.overrides)
    left = tuple(p for p in built.problems if not _is_zero_bias(checkpoint, built, p))
    built = replace(built, problems=left)
    _check_scalings(checkpoint, built)
    return Description(checkpoint, document, source, facts, built)


def _find(checkpoint: Checkpoint) -> tuple[Document, Source]:
    """The spec of a checkpoint, and the source of its facts."""
    path = checkpoint.path
    own, config = path.with_name(OWN_SPEC), path.with_name(CONFIG)
    source: GgufSource | ConfigSource | FileSource | NoSource
    if checkpoint.format == "GGUF":
        source = GgufSource(path, checkpoint.metadata)
    elif (own_facts := _facts_inside(checkpoint)) is not None:
        kind, (name, values) = own_facts
        values = checkpoint.overrides.on_config(values, str(path))
        source = FileSource(path, kind, name, values)
    elif is_file(config):
        source = _config_source(checkpoint, config)
    else:
        source = NoSource(path)
    if is_file(own):
        return load(own, source.kind), source
    if isinstance(source, NoSource):
        raise FormatError(
            f"{path}: expected {CONFIG} beside it, or a {OWN_SPEC} that describes the model "
            "(docs/add-a-model.md), found neither"
        )
    key = "general.architecture" if isinstance(source, GgufSource) else "model_type"
    where = source.label(key) if isinstance(source, ConfigSource) else f"{path}: {key}"
    return load(family(source.kind, source.family, where), source.kind), source


def _facts_inside(checkpoint: Checkpoint) -> tuple[str, tuple[str, dict[str, Any]]] | None:
    """What files of weights that describe their model say: the kind, the family, values."""
    if checkpoint.format == ctranslate2.FORMAT:
        return "ctranslate2", ctranslate2.facts(checkpoint)
    if marian.CONFIG in checkpoint.metadata:
        return "marian", marian.facts(checkpoint)
    return None


def _check_overrides(checkpoint: Checkpoint, document: Document, source: Source) -> None:
    """FormatError: nothing reads a key of the overrides, or what reads it finds what it wants."""
    overrides = checkpoint.overrides
    root = f"{source.family}." if isinstance(source, GgufSource) else ""
    reads = {f"{root}{key}" for key in document.reads}
    for key in overrides.keys:
        parents = {key[:i] for i, character in enumerate(key) if character == "."}
        is_read = not reads.isdisjoint({key, *parents}) or any(
            one.startswith(f"{key}.") for one in reads
        )
        if is_read or overrides.is_known(key):
            continue
        where = f"{checkpoint.path}: override of {printable(key):.100}"
        is_there = _is_there(checkpoint, key, source)
        unread = unread_of(document["unread"], key.removeprefix(root))
        if unread is not None and (unread.only is None or not is_there):
            raise FormatError(f"{where}: has no effect: {unread.why}; leave it out")
        if not is_there:
            raise FormatError(
                f"{where}: expected a key of the model's configuration, found none"
                f"{nearest(key, reads)}"
            )


def _check_scalings(checkpoint: Checkpoint, built: Built) -> None:
    """FormatError: a key of the overrides is in a table of scalings that no rope reads."""
    for key in checkpoint.overrides.keys:
        parent = key.rpartition(".")[0]
        is_read = any(t.where.endswith((f" {parent}", f".{parent}")) for t in built.ropes.values())
        if parent.endswith(_SCALINGS) and not is_read and not built.problems:
            raise FormatError(
                f"{checkpoint.path}: override of {printable(key):.100}: has no effect: no rope of "
                "this model reads its scaling there"
            )


def _is_there(checkpoint: Checkpoint, key: str, source: Source) -> bool:
    """Whether the files say something of a key."""
    if isinstance(source, FileSource):
        return source.has(key)
    if checkpoint.format == "GGUF":
        return key in checkpoint.native.metadata
    path = checkpoint.path.with_name(CONFIG)
    config = read_config(path) if is_file(path) else {}
    inner = config.get("text_config")
    return key in (inner if isinstance(inner, dict) else config)


def _config_source(checkpoint: Checkpoint, path: Path) -> ConfigSource:
    """A config.json; of a multimodal model, the part for its language model."""
    config, overrides = read_config(path), checkpoint.overrides
    _check_quantization(checkpoint, path, config)
    is_part = isinstance(config.get("text_config"), dict)
    root = "text_config" if is_part else ""
    if is_part:
        config = {root: overrides.on_config(config[root], str(path))}
    else:
        config = overrides.on_config(config, str(path))
    return ConfigSource(path, config, root)


def _check_quantization(checkpoint: Checkpoint, path: Path, config: dict[str, Any]) -> None:
    """UnsupportedError: another program has quantized the weights, and not as we read them."""
    inner = config.get("text_config")
    for root, one in (("", config), ("text_config.", inner)):
        found = one.get("quantization_config") if isinstance(one, dict) else None
        if found is None:
            continue
        method = found.get("quant_method") if isinstance(found, dict) else found
        if isinstance(found, dict) and method in ("mxfp4", *quantized.METHODS):
            if checkpoint.format != quantized.FORMAT:
                raise UnsupportedError(
                    f"{path}: {root}quantization_config: expected weights in files of "
                    f"{quantized.FORMAT}, found {checkpoint.format}; take such a folder"
                )
            continue  # formats.open has joined its tensors
        if not isinstance(found, dict) or method != METHOD:
            known = ", ".join(map(repr, (METHOD, *sorted(quantized.METHODS))))
            raise UnsupportedError(
                f"{path}: {root}quantization_config: expected none, or an object with quant_method "
                f"{known} or 'mxfp4', found {method!r:.60}; take the original model, and "
                "quantize that"
            )
        version = found.get("version")
        if version != VERSION:
            raise UnsupportedError(
                f"{path}: {root}quantization_config.version: expected {VERSION}, found "
                f"{version!r:.60}; update pyflow"
            )
