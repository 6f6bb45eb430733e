"""Which files of a folder are its checkpoint, and what is wrong with those that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from pyflow.formats.lookalikes import in_place_of_a_file
from pyflow.formats.side_files import broken_link, is_file, read_json

from pyflow import _core
from pyflow.errors import FormatError
from pyflow.text import printable

# What transformers opens, in its order.
_NAMED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# The layout of hubs; the first pattern that matches wins. safetensors beside PyTorch files hold the
# same weights.
_PATTERNS = (
    "*.safetensors.index.json",
    "*.safetensors",
    "*.bin.index.json",
    "*.bin",
    "*.npz",
    "*.pt",
    "*.pth",
    "*.gguf",
)
# Files that trainers save beside a model.
_TRAINERS = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states)[-._\d].*"
)
# Of Marian: which words may translate a word. pyflow takes all.
_SHORTLISTS = re.compile(r"lex\b.*\.bin")
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER = re.compile(r"adapter_model\b.*")
# Mistral's own names for the same weights.
_CONSOLIDATED = re.compile(r"consolidated\b.*")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
_JOINED = (".safetensors", ".bin")  # parts that say nothing of each other
_UNFINISHED = ("*.incomplete", "*.part", "*.crdownload", "*.aria2")
_MAX_INDEX = 64 << 20  # bytes
_MAX_PARTS = 4096
_SHOWN = 4


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Adapter(msgspec.Struct):
    base_model_name_or_path: str | None = None


def main_file(folder: Path) -> Path:
    """The checkpoint in a folder; FormatError if there is none, parts of it are missing, or there
    is more than one."""
    for name in _NAMED:
        if (folder / name).is_file():
            return folder / name
    for pattern in _PATTERNS:
        found = [path for path in _weights(folder, pattern) if not _ADAPTER.fullmatch(path.name)]
        firsts = _firsts(folder, found)
        if len(firsts) > 1:
            firsts = [p for p in firsts if not _CONSOLIDATED.fullmatch(p.name)] or firsts
        if len(firsts) == 1:
            return firsts[0]
        if firsts:
            raise FormatError(
                f"{folder}: expected one checkpoint, found {len(firsts)} files {pattern} "
                f"({_listed([p.name for p in firsts])}); give the path of one of them"
            )
    _refuse_adapter(folder)
    found_instead, advice = _instead(folder)
    raise FormatError(
        f"{folder}: expected a folder with a checkpoint ({', '.join(_PATTERNS)}), found "
        f"{found_instead}; {advice}"
    )


def parts_of(path: Path) -> list[Path]:
    """All parts of a checkpoint, given the first of them, which names the others; only `path` if
    they are not all there."""
    match = _PART.fullmatch(path.name)
    if match is None or match["suffix"] not in _JOINED or int(match["number"]) != 1:
        return [path]
    parts = _parts(path.parent, match)
    return parts if parts and all(part.is_file() for part in parts) else [path]


def left_aside(folder: Path, opened: Iterable[Path]) -> list[str]:
    """Weights in a folder that are not among the files that were opened, links that lead nowhere,
    and adapters: a sentence for each kind."""
    names = {path.name for path in opened}
    others = [
        path.name
        for pattern in _PATTERNS
        for path in _weights(folder, pattern)
        if path.name not in names and not pattern.endswith(".json")
    ]
    notes = [f"left aside: {_listed(others)}"] if others else []
    notes += [f"{path.name} is {why}; left aside" for path, why in _broken(folder)]
    for index in sorted(folder.glob("*.index.json")):
        if index.name not in names and (shards := _shards(index) - names):
            notes.append(
                f"{index.name} names other weights ({_listed(sorted(shards))}); left aside"
            )
    if (folder / _ADAPTER_CONFIG).is_file():
        notes.append(
            f"{_ADAPTER_CONFIG}: the adapter is not applied, as transformers would do; to use it, "
            "merge it with peft (merge_and_unload, save_pretrained)"
        )
    return notes


def _shards(index: Path) -> set[str]:
    """The files that an index names; none if it cannot be read."""
    with suppress(FormatError):
        return {*read_json(index, _Index, max_nbytes=_MAX_INDEX).weight_map.values()}
    return set()


def check_description(folder: Path) -> None:
    """FormatError if another file stands where the model's description should be."""
    path = folder / "config.json"
    if why := broken_link(path):
        raise FormatError(f"{path}: is {why}; fetch the file again")
    head = _core.read_head(path, 4096) if is_file(path) else b""
    if head and (found := in_place_of_a_file(head)):
        raise FormatError(f"{path}: expected a model's description in JSON, found {found}")


def explain(path: Path, error: str) -> str:
    """The error of opening a file; for an index, also what is wrong with the parts it names."""
    if not path.name.endswith(".index.json"):
        return error
    with suppress(FormatError):
        if found := in_place_of_a_file(_core.read_head(path, 4096)):
            return f"{path}: expected an index of shards, found {found}"
        if error.startswith(str(path)):  # about the index itself
            return error
        index = read_json(path, _Index, max_nbytes=_MAX_INDEX)
        names = sorted({name for name in index.weight_map.values() if name == Path(name).name})
        wrong = [
            f"{name} {why}" for name in names[:_MAX_PARTS] if (why := _fault(path.parent / name))
        ]
        if wrong:
            return (
                f"{path}: {len(wrong)} of {len(names)} shards cannot be read: {_listed(wrong)}; "
                "fetch them again into this folder"
            )
    return error


def _fault(path: Path) -> str | None:
    if why := broken_link(path):
        return f"is {why}"
    if not path.exists():
        return "is missing"
    with suppress(FormatError):
        if found := in_place_of_a_file(_core.read_head(path, 4096)):
            return f"is {found}"
    return None


def _weights(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in folder.glob(pattern)
        if path.is_file() and path.name[0] != "." and not _is_other(path.name)
    )


def _is_other(name: str) -> bool:
    """Whether a file of this name holds something else than a model."""
    return bool(_TRAINERS.fullmatch(name) or _SHORTLISTS.fullmatch(name))


def _firsts(folder: Path, found: Sequence[Path]) -> list[Path]:
    """These files without the later parts of a checkpoint, as the first opens all.

    FormatError: parts are missing.
    """
    firsts: dict[Path, None] = {}
    for path in found:
        match = _PART.fullmatch(path.name)
        parts = [] if match is None else _parts(folder, match)
        missing = [part.name for part in parts if not part.is_file()]
        if missing:
            raise FormatError(
                f"{folder}: expected {len(parts)} parts of a checkpoint such as {path.name}, "
                f"found {len(parts) - len(missing)}; missing: {_listed(missing)}; fetch them into "
                "this folder"
            )
        firsts[parts[0] if parts else path] = None
    return [*firsts]


def _parts(folder: Path, match: re.Match[str]) -> list[Path]:
    """The paths of all parts, given the name of one; empty if the numbers are none of parts."""
    count = int(match["count"])
    if not 0 < int(match["number"]) <= count <= _MAX_PARTS:
        return []
    return [
        folder / f"{match['stem']}-{i:05}-of-{count:05}{match['suffix']}"
        for i in range(1, count + 1)
    ]


def _refuse_adapter(folder: Path) -> None:
    """FormatError if the folder has an adapter, where no model is."""
    path = folder / _ADAPTER_CONFIG
    if not path.is_file():
        return
    base = None
    with suppress(FormatError):
        base = read_json(path, _Adapter, max_nbytes=_MAX_INDEX).base_model_name_or_path
    of = f" of {printable(base):.200}" if base else ""
    raise FormatError(
        f"{folder}: expected a model, found only an adapter{of}; merge it into its base with peft "
        "(merge_and_unload, save_pretrained) and give that folder"
    )


def _instead(folder: Path) -> tuple[str, str]:
    """What a folder has in place of a checkpoint, and what to do."""
    if broken := [f"{path.name}, {why}" for path, why in _broken(folder)]:
        return _listed(broken), "fetch the files again"
    if found := sorted(path.name for end in _UNFINISHED for path in folder.glob(end)):
        return f"an unfinished download, {_listed(found)}", "fetch it again"
    return "none", "give the path of the file"


def _broken(folder: Path) -> list[tuple[Path, str]]:
    """Links in place of weights that lead nowhere, each with what to say of it."""
    found = sorted({path for pattern in _PATTERNS for path in folder.glob(pattern)})
    return [
        (path, why)
        for path in found
        if (why := broken_link(path)) and not _TRAINERS.fullmatch(path.name)
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return printable(", ".join(names[:_SHOWN])) + more
