"""Texts in files: tokens and the cells that a model made of them, for a process to go on from.

A file is a safetensors file of

    tokens       I32 (n)                        the text
    cells.<l>    U8 (m, bytes of a cell)        of layer l: keys and values of the last m tokens,
                                                all n without a window
    digest       U8 (32)                        BLAKE2b of the metadata and of all above

whose metadata say what it is good for: the version of pyflow, the model, the type of the cells.
Cells are kept bit for bit, so what a model writes after them is what it would have written. Where
prompts have an arithmetic of their own, notes name it and the tokens that were drawn; without these
notes all cells are those of decoding.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyflow import formats
from pyflow.engine.cached_text import CachedText
from pyflow.engine.context import CacheType, Context
from pyflow.engine.members.cells import JoinedCells, joined_cells
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.origins import Ranges, cell_names, drawn_in, tokens_of
from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.formats.replacing import replacing
from pyflow.formats.safetensors_writer import NewTensor, SafetensorsWriter
from pyflow.text import printable

_FORMAT = "pyflow-session-2"
_RANGES = re.compile(r"([0-9]{1,9}-[0-9]{1,9}( [0-9]{1,9}-[0-9]{1,9})*)?")
_DIGEST_NBYTES = 32
_N_POSITIONS = "positions"
"""The note of how many positions the text may take, which the cells depend on."""
_PREFILL, _DRAWN = "prefill", "drawn"
"""The notes of the arithmetic of prompts, and of the tokens without it: "12-40 55-90"."""
_MODEL_NAME = "model name"
"""The note of what the model is called, for people."""


@dataclass(frozen=True, slots=True)
class SavedText:
    """A text of a file that has been checked against its digest."""

    path: Path
    tokens: list[int]
    notes: dict[str, str]
    """What the writer put beside the text."""
    cells: list[NDArray[np.uint8]]
    """Per layer: (m, bytes of a cell), views into the file."""

    @property
    def prefill(self) -> str:
        """The arithmetic of its prompts."""
        return self.notes.get(_PREFILL, "decode")

    @property
    def names(self) -> list[int]:
        """Of the cells, where prompts have an arithmetic of their own (engine/origins.py)."""
        if self.prefill == "decode":
            return cell_names(self.tokens, ((0, len(self.tokens)),))
        return cell_names(self.tokens, _ranges(self.notes[_DRAWN]))

    def restore(self, cached: CachedText) -> None:
        """Puts the text and its cells into an empty sequence.

        FormatError: they are not cells of that context. UnsupportedError: their prompts have
        another arithmetic than its own. Nothing of them stays then.
        """
        context, n = cached.context, len(self.tokens)
        if self.prefill not in ("decode", context.prefill):
            raise UnsupportedError(
                f"{self.path}: arithmetic of prompts: expected {context.prefill}, as on this CPU, "
                f"found {printable(self.prefill):.80}; CPUs with AMX have it, and can go on"
            )
        cached.declare(int(self.notes[_N_POSITIONS]))
        firsts = _firsts(context, n)
        sizes = [size for _, size in _shapes(context, cached.seq, n)]
        if [cells.shape for cells in self.cells] != [
            (n - first, size) for first, size in zip(firsts, sizes, strict=True)
        ]:
            raise FormatError(f"{self.path}: cells: expected those of {n:,} tokens in each layer")
        joined = _cells(context)
        for begin in range(0, n, context.n_batch):
            end = min(begin + context.n_batch, n)
            rows = [
                cells[max(0, begin - first) : max(0, end - first)]
                for first, cells in zip(firsts, self.cells, strict=True)
            ]
            joined.restore(cached.seq, begin, end - begin, rows)
        cached.tokens = self.names if context.has_prefill else [*self.tokens]


def save_text(path: Path, cached: CachedText, notes: Mapping[str, str]) -> None:
    """Writes a text and its cells, whole or not at all. Raises as `formats.replacing` does."""
    context, seq = cached.context, cached.seq
    n = context.seq_reusable(seq, len(cached.tokens))
    names = cached.tokens[:n]
    tokens = np.asarray(tokens_of(names), np.int32)
    tensors = [
        NewTensor("tokens", (n,), "I32", tokens.nbytes),
        *(
            NewTensor(f"cells.{i}", shape, "U8", shape[0] * shape[1])
            for i, shape in enumerate(_shapes(context, seq, n))
        ),
        NewTensor("digest", (_DIGEST_NBYTES,), "U8", _DIGEST_NBYTES),
    ]
    own = {_N_POSITIONS: str(cached.n_positions), _MODEL_NAME: context.model.name}
    if context.has_prefill:
        drawn = " ".join(f"{begin}-{end}" for begin, end in drawn_in(names))
        own |= {_PREFILL: context.prefill, _DRAWN: drawn}
    rest = {key: note for key, note in notes.items() if key not in (_PREFILL, _DRAWN)}
    all_notes = json.dumps({**rest, **own})
    metadata = {**_terms(context.model, context.cache_type), "notes": all_notes}
    digest = _digest_of(metadata)
    with replacing(path) as file:
        writer = SafetensorsWriter(file, tensors, metadata)
        for part in _parts(context, seq, tokens):
            digest.update(part.data)
            writer.write(part)
            writer.end_tensor()
        writer.write(np.frombuffer(digest.digest(), np.uint8))
        writer.end_tensor()
        writer.close()


def open_text(path: Path, model: ModelFiles, cache_type: CacheType) -> SavedText:
    """The text in a file of `save_text`.

    FormatError: no such file, or a damaged one. UnsupportedError: it is of another model, version
    of pyflow or type of cache.
    """
    try:
        checkpoint = formats.open(path)
    except FormatError:
        raise FormatError(f"{path}: expected a session, found another or a damaged file") from None
    if checkpoint.metadata.get("format") != _FORMAT:
        raise FormatError(f"{path}: expected a session, found a {checkpoint.format} file")
    terms = _terms(model, cache_type)
    for key, expected in terms.items():
        if (found := checkpoint.metadata.get(key)) != expected:
            what = f"expected {expected}, found {printable(str(found)):.80}"
            if key == "model":
                what = _other_model(model.name, checkpoint.metadata.get("notes"))
            raise UnsupportedError(f"{path}: {key}: {what}")
    return _read(path, checkpoint, {*terms, "notes"}, model.spec.n_vocab)


def _other_model(name: str, notes: object) -> str:
    """What to say of a session of another model; its notes have not been checked."""
    try:
        found = json.loads(str(notes))[_MODEL_NAME]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = "another"
    found = printable(str(found))[:80]
    if found != name:
        return f"expected {name}, found {found}"
    return (
        f"expected {name} as it is now, found other weights, or values such as --quantize and "
        "--override-kv give"
    )


def _read(path: Path, checkpoint: Checkpoint, keys: set[str], n_vocab: int) -> SavedText:
    n_layers = len(checkpoint.tensors) - 2
    names = ["tokens", *(f"cells.{i}" for i in range(n_layers)), "digest"]
    if {tensor.name for tensor in checkpoint.tensors} != {*names}:
        raise FormatError(f"{path}: expected the tensors tokens, cells.0 and so on, and digest")
    tokens, *cells, expected = (checkpoint.array(name) for name in names)
    digest = _digest_of({key: checkpoint.metadata.get(key) for key in keys})
    for array in (tokens, *cells):
        digest.update(np.ascontiguousarray(array).data.cast("B"))
    if digest.digest() != expected.tobytes():
        raise FormatError(f"{path}: digest: expected {digest.hexdigest()[:16]}..., found another")
    if tokens.dtype != np.int32 or tokens.ndim != 1 or any(c.dtype != np.uint8 for c in cells):
        raise FormatError(f"{path}: expected tokens in I32 and cells in U8")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < n_vocab:
        raise FormatError(f"{path}: tokens: expected 0 to {n_vocab - 1}")
    notes = json.loads(checkpoint.metadata["notes"])
    if not re.fullmatch(r"[1-9][0-9]{0,9}", str(notes.get(_N_POSITIONS))):
        raise FormatError(f"{path}: {_N_POSITIONS}: expected a number of positions")
    if _PREFILL in notes and not _RANGES.fullmatch(str(notes.get(_DRAWN))):
        raise FormatError(f"{path}: {_DRAWN}: expected places in the text, such as 12-40")
    return SavedText(path, tokens.tolist(), notes, [cell.view(np.uint8) for cell in cells])


def _ranges(note: str) -> Ranges:
    """What `_DRAWN` notes."""
    pairs = (place.split("-") for place in note.split())
    return tuple((int(begin), int(end)) for begin, end in pairs)


def _parts(context: Context, seq: int, tokens: NDArray[np.int32]) -> Iterator[NDArray[np.uint8]]:
    yield tokens.view(np.uint8)
    cells = _cells(context)
    for layer, first in enumerate(_firsts(context, tokens.size)):
        yield cells.read(layer, seq, first, tokens.size).reshape(-1)


def _shapes(context: Context, seq: int, n: int) -> list[tuple[int, int]]:
    """Per layer: how many cells of a text of n tokens are kept, and the bytes of one."""
    cells = _cells(context)
    return [
        (n - first, cells.read(layer, seq, n, n).shape[1])
        for layer, first in enumerate(_firsts(context, n))
    ]


def _cells(context: Context) -> JoinedCells:
    return joined_cells(
        context.native, context.stages, context.model.checkpoint, context.model.spec
    )


def _firsts(context: Context, n: int) -> list[int]:
    """Per layer: the first position that a token at position n sees."""
    return [max(0, n - w + 1) if w else 0 for w in context.native.layer_windows]


def _terms(model: ModelFiles, cache_type: CacheType) -> dict[str, str]:
    """What a session and its user must have in common."""
    return {
        "format": _FORMAT,
        "version": version("pyflow-llm"),
        "model": model.fingerprint,
        "cache type": cache_type,
    }


def _digest_of(metadata: Mapping[str, object]) -> hashlib.blake2b:
    text = json.dumps(metadata, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_NBYTES)
