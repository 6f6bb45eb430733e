"""Which files of a repository make a model: one of its GGUF files, or a folder with its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from pyflow.errors import FormatError, ResourceError
from pyflow.formats.side_files import parse_json
from pyflow.hub.listing import RemoteFile
from pyflow.hub.names import HubName
from pyflow.hub.quants import ORDER, Quant, is_aside, is_gguf, missing, one_of, quants

# What pyflow reads beside weights.
_BESIDE = frozenset(
    {
        *("config.json", "pyflow.toml", "generation_config.json", "tokenizer.json"),
        *("tokenizer.model", "spiece.model", "tokenizer_config.json", "special_tokens_map.json"),
        *("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja"),
        *("chat_template.json", "sentencepiece.bpe.model", "source.spm", "target.spm"),
    }
)
# Of weights, the first kind that is there; others would hold the same again.
WEIGHTS = (".safetensors.index.json", ".safetensors", ".bin.index.json", ".bin", ".pt", ".pth")
_USUAL = ("model.", "pytorch_model.")
_NOTWEIGHTS = frozenset({"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt"})
_SAFETENSORS = "safetensors"
# Bytes of memory per byte of a file: weights, and beside them a cache and scratch.
_MEMORY = 1.1


class _Index(Struct):
    """The file that names the shards of a model."""

    weight_map: dict[str, str]


Read = Callable[[RemoteFile], str]


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model."""

    files: tuple[RemoteFile, ...]
    main: str
    """The file to open; of several the first part or the index."""
    is_folder: bool
    """Whether the folder of `main` is the model: its description lies beside the weights."""
    label: str
    """The quant, or "safetensors" or "PyTorch"."""
    why: str = ""
    others: tuple[Quant, ...] = ()
    aside: tuple[str, ...] = ()
    """GGUF files that are no language model."""

    @property
    def nbytes(self) -> int | None:
        sizes = [file.nbytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def choose(
    name: HubName, files: Sequence[RemoteFile], read: Read, *, available: int | None = None
) -> Choice:
    """The files that a name means.

    read: the text of a file, for the index of shards. available: bytes of memory that are free;
    None: several models of which none is asked for, nor Q4_K_M, are an error.
    FormatError: no model, or not the one that the name asks for. ResourceError: none fits.
    """
    found = quants(files)
    aside = tuple(f.name for f in files if is_gguf(f.name) and is_aside(f.name))
    wanted = name.wanted
    asks_folder = wanted is not None and (
        wanted.lower() == _SAFETENSORS or wanted.lower().endswith(WEIGHTS)
    )
    if asks_folder or not found:
        part = next((f.name for f in files if is_gguf(f.name) and not is_aside(f.name)), None)
        if part is not None and not found and not asks_folder:
            raise FormatError(f"{name.repo}: {part} is one of several parts, of which others lack")
        return _folder(name, files, read, found)
    if wanted is not None:
        quant = one_of(found, wanted, name.repo)
        why = "as asked"
    elif len(found) == 1:
        quant, why = found[0], _note_of_memory(found[0], available)
    elif available is None:
        quant, why = _only_usual(name, found), ""
    else:
        quant, why = _best(name, found, available)
    others = tuple(other for other in found if other is not quant)
    main = quant.files[0].name
    return Choice(quant.files, main, False, quant.label, why, others, aside)


def _note_of_memory(quant: Quant, available: int | None) -> str:
    if available is None or quant.nbytes is None or quant.nbytes * _MEMORY <= available:
        return "the only one"
    return f"the only one, and larger than the {available / 1e9:.1f} GB of memory that are free"


def _only_usual(name: HubName, found: list[Quant]) -> Quant:
    usual = [quant for quant in found if quant.label == ORDER[0]]
    if len(usual) == 1:
        return usual[0]
    choices = ", ".join(f"{name}:{quant.short}" for quant in found)
    raise FormatError(f"{name}: {len(found)} models of it are here; name one: {choices}")


def _best(name: HubName, found: list[Quant], available: int) -> tuple[Quant, str]:
    """The first in ORDER that fits, and why."""
    ranked = sorted(
        (quant for quant in found if quant.label in ORDER),
        key=lambda quant: ORDER.index(quant.label),
    )
    if not ranked:
        raise FormatError(
            f"{name.repo}: has several models, and none of a quant that pyflow would choose; name"
            f" one: {', '.join(f'{name}:{quant.short}' for quant in found)}"
        )
    room = f"the {available / 1e9:.1f} GB of memory that are free"
    for quant in ranked:
        if quant.nbytes is None or quant.nbytes * _MEMORY <= available:
            alike = [other for other in ranked if other.label == quant.label]
            if len(alike) > 1:
                files = ", ".join(f"{name}:{other.files[0].name}" for other in alike[:8])
                raise FormatError(f"{name.repo}: has several models; name one: {files}")
            if quant is ranked[0]:
                return quant, f"the usual choice, and fits into {room}"
            return quant, f"the best that fits into {room}"
    least = min(ranked, key=lambda quant: quant.nbytes or 0)
    raise ResourceError(
        f"{name.repo}: no quant fits into {room}; the smallest is {least.short},"
        f" {(least.nbytes or 0) / 1e9:.1f} GB; 'pyflow pull {name}:{least.short}' pulls it anyway"
    )


def _folder(
    name: HubName, files: Sequence[RemoteFile], read: Read, found: Sequence[Quant]
) -> Choice:
    """The weights in the top folder, of one kind, and what describes them."""
    top = {file.name: file for file in files if "/" not in file.name}
    main = _main(name, list(top), files)
    weights = [main]
    if main.endswith(".index.json"):
        weights += _shards(name, main, read(top[main]), top)
    beside = sorted(top.keys() & _BESIDE)
    if not beside or not {"config.json", "pyflow.toml"} & set(beside):
        raise FormatError(
            f"{name.repo}: expected config.json beside {main}, found none; pyflow runs GGUF files,"
            " and folders of transformers' form"
        )
    label = _SAFETENSORS if _SAFETENSORS in main else "PyTorch"
    # Small files first: a folder with weights is a whole one.
    ordered = tuple(top[file] for file in (*beside, *weights))
    return Choice(ordered, main, True, label, others=tuple(found))


def _main(name: HubName, top: list[str], files: Sequence[RemoteFile]) -> str:
    wanted = name.wanted if name.wanted and name.wanted.lower() != _SAFETENSORS else None
    for kind in WEIGHTS:
        found = sorted(f for f in top if f.endswith(kind) and f not in _NOTWEIGHTS)
        if wanted is not None:
            found = [f for f in found if f.lower() == wanted.lower()]
        if len(found) > 1:
            found = [f for f in found if f.startswith(_USUAL)] or found
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(f"{name}:{f}" for f in found[:8])
            raise FormatError(f"{name.repo}: has several models; name one: {names}")
    known = [f.name for f in files if f.name.lower().endswith((".gguf", *WEIGHTS))]
    if wanted is not None:
        raise missing(name.repo, wanted, known)
    raise FormatError(
        f"{name.repo}: expected a model (GGUF, safetensors or PyTorch) in its top folder, found"
        f" {', '.join(known[:8]) or 'none'}; choose another repository"
    )


def _shards(name: HubName, index: str, text: str, top: dict[str, RemoteFile]) -> list[str]:
    """The files that an index names."""
    found = parse_json(text.encode(), _Index, source=f"{name.repo}: {index}")
    shards = sorted(set(found.weight_map.values()))
    if lost := [shard for shard in shards if shard not in top]:
        raise FormatError(
            f"{name.repo}: {index}: names {lost[0]}, which is not there; the model is incomplete"
        )
    if not shards:
        raise FormatError(f"{name.repo}: {index}: expected names of files, found none")
    return shards
