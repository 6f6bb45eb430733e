"""Spec files: reading, `extends`, and the section for a kind of source laid over the rest."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyflow._core import read_head
from pyflow.errors import SpecError, UnsupportedError
from pyflow.specs.blocks import named_kinds
from pyflow.specs.grammar import (
    COMMON,
    SPEC,
    STEP_NORMS,
    Step,
    below,
    check_keys,
    check_literals,
    read,
)
from pyflow.specs.language.facts import OF_ALL_MODELS
from pyflow.specs.language.shapes import REQUIRED, BlockName, BlockTable, Named, Param, Shape
from pyflow.specs.language.tensors import Entry
from pyflow.specs.language.unread import Unread
from pyflow.specs.language.values import Given, Key, nearest
from pyflow.text import printable

VERSION = 1
FAMILIES = Path(__file__).parents[1] / "families"
_MAX_BYTES = 1 << 18
# By the kind of source, the key that has the names of a family there.
_NAMES = {
    "hf": "model_type",
    "gguf": "architecture",
    "ctranslate2": "family",
    "marian": "family",
}
_MAX_DEPTH = 12
_MAX_CHAIN = 8
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class Document:
    """A spec and what it extends, for one kind of source.

    tables: of the shape `grammar.COMMON`; only keys with a default may be missing.
    """

    name: str
    path: Path
    tables: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.tables.get(key, {})

    @property
    def reads(self) -> frozenset[str]:
        """The keys of the configuration that the model depends on: those that the spec names by
        ``$key``, but for facts that nothing uses."""
        facts = self["facts"]
        used = [facts[name] for name in OF_ALL_MODELS if name in facts]
        used += _leaves({k: v for k, v in self.tables.items() if k not in ("facts", "unread")})
        used += [facts[name] for name in _pattern_names(self.tables) if name in facts]
        found: dict[str, None] = {}
        seen: set[str] = set()
        while used:
            given = used.pop()
            found |= dict.fromkeys(one.name for one in given.alternatives if isinstance(one, Key))
            names = [name for name in given.names if name in facts and name not in seen]
            seen.update(names)
            used += [facts[name] for name in names]
        return frozenset(found)


def load(path: Path, kind: str) -> Document:
    """The spec in a file, for models that come as `kind`: hf, gguf, ctranslate2 or marian.

    FormatError: the file is missing. SpecError, naming file and key: it breaks the grammar.
    """
    merged = _merged(path, ())
    tables = {key: value for key, value in merged.items() if key in COMMON}
    tables = merge(tables, {k: v for k, v in merged.get(kind, {}).items() if k in COMMON})
    name = printable(merged.get("name", path.stem))[:_MAX_NAME]
    _check(tables, f"{label(path)}: ")
    return Document(name, path, tables)


def families() -> Iterator[Path]:
    """The files of the families that pyflow knows."""
    yield from sorted(FAMILIES.glob("*.toml"))


def family_names(kind: str) -> dict[str, Path]:
    """What checkpoints call the families, config.json's model_type or GGUF's architecture."""
    key = _NAMES[kind]
    return {name: path for path in families() for name in _read(path).get(kind, {}).get(key, ())}


def family(kind: str, name: str, where: str) -> Path:
    """The file of a family. where: the key that names it. UnsupportedError: it is unknown."""
    quoted = f'"{name}"'
    key = _NAMES[kind]
    for path in families():
        # Reading is quick, parsing is not: skip files without the word.
        if quoted in path.read_text("utf-8") and name in _read(path).get(kind, {}).get(key, ()):
            return path
    names = family_names(kind)
    raise UnsupportedError(
        f"{where}: {name!r:.60} is not supported{nearest(name, names)}; known families: "
        f"{', '.join(sorted(names))}; or describe the model in a pyflow.toml beside it "
        "(docs/add-a-model.md)"
    )


def architecture(path: Path) -> str | None:
    """GGUF's name for the models of a spec; None if the spec gives none."""
    names: tuple[str, ...] = _merged(path, ()).get("gguf", {}).get("architecture", ())
    return names[0] if names else None


def label(path: Path) -> str:
    """A spec file in messages: a family's by its name alone."""
    return path.name if path.parent == FAMILIES else str(path)


@cache
def _read(path: Path) -> dict[str, Any]:
    """One file of a family, by the grammar."""
    return read_file(path)


def read_file(path: Path) -> dict[str, Any]:
    """One file by the grammar. Keys may be missing: a file that it extends may have them."""
    is_empty = path.is_file() and path.stat().st_size == 0  # read_head refuses empty files
    raw = b"" if is_empty else read_head(path, _MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise SpecError(f"{label(path)}: expected at most {_MAX_BYTES:,} bytes, found more")
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except RecursionError:
        raise SpecError(f"{label(path)}: is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not TOML, or an integer of thousands of digits
        raise SpecError(f"{label(path)}: expected TOML: {error}") from None
    _check_depth(table, label(path))
    version = table.pop("spec", None)
    if version is None or isinstance(version, bool) or version != VERSION:
        raise SpecError(
            f"{label(path)}: spec: expected {VERSION}, the version of the grammar, "
            f"found {version!r:.60}"
        )
    read_: dict[str, Any] = read(SPEC, table, f"{label(path)}: ")
    return read_


def _check_depth(table: dict[str, Any], where: str) -> None:
    level: list[Any] = [table]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise SpecError(f"{where}: expected at most {_MAX_DEPTH} levels of tables, found more")


def _merged(path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    if path in chain or len(chain) >= _MAX_CHAIN:
        way = " -> ".join(p.name for p in (*chain, path))
        raise SpecError(
            f"{label(chain[0])}: extends: expected at most {_MAX_CHAIN} files, found {way}"
        )
    own = _read(path) if path.parent == FAMILIES else read_file(path)
    if "extends" not in own:
        return own
    return merge(_merged(_base(own["extends"], path), (*chain, path)), own)


def _base(name: str, path: Path) -> Path:
    """The file that `path` extends: a family by its name, or a file in the same folder."""
    if name.endswith(".toml"):
        if Path(name).name != name:
            raise SpecError(
                f"{label(path)}: extends: expected a file of the same folder, found {name!r:.60}"
            )
        return path.with_name(name)
    known = {p.stem: p for p in families()}
    if name not in known:
        raise SpecError(
            f"{label(path)}: extends: there is no family {name!r:.60}{nearest(name, known)}; "
            f"expected {', '.join(known)}, or a file NAME.toml in the same folder"
        )
    return known[name]


def merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` laid over `base`: tables key by key, everything else replaced. Keys of `own` first."""
    merged = dict(own)
    for key, value in base.items():
        if key not in own:
            merged[key] = value
        elif isinstance(value, dict) and isinstance(own[key], dict):
            merged[key] = merge(value, own[key])
    return merged


# ---- checks of the merged tables


def _check(tables: dict[str, Any], where: str) -> None:
    _check_blocks(tables, where)
    if not {"decoder", "encoder"} & tables.keys():
        raise SpecError(f"{where}expected a table decoder or encoder, found neither")
    _complete(COMMON, tables, where)
    known = {*tables.get("facts", {}), "i"}
    for given in _leaves(tables):
        for name in given.names:
            if name not in known:
                raise SpecError(f"{given.where}: there is no fact {name!r}{nearest(name, known)}")
    for entries in tables.get("tensors", {}).get("places", {}).values():
        for entry in entries.values():
            _check_patterns(entry, known)
    for stack in ("encoder", "decoder"):
        for step in tables.get(stack, {}).get("layer", ()):
            _check_step(step, tables["blocks"], where)
        _check_norms(tables.get(stack, {}), tables["blocks"], f"{where}{stack}")
    _check_layers(tables, where)


def _check_blocks(tables: dict[str, Any], where: str) -> None:
    for name, block in tables.setdefault("blocks", {}).items():
        at = f"{where}blocks.{name}"
        kind, known = block.get("kind"), named_kinds()
        if kind not in known:
            raise SpecError(
                f"{at}.kind: expected one of {', '.join(known)}, "
                f"found {'nothing' if kind is None else repr(kind)}"
            )
        given, keys = {k: v for k, v in block.items() if k != "kind"}, known[kind].keys
        check_keys(given, keys, at)
        for key, value in given.items():
            shape = keys[key]
            if isinstance(shape, Param):
                check_literals(shape, value)
            elif isinstance(shape, BlockName):
                _check_block(value, shape.kind, tables["blocks"], f"{at}.{key}")


def _check_block(name: str, kind: str, blocks: Mapping[str, Any], where: str) -> None:
    if name not in blocks:
        raise SpecError(f"{where}: there is no block {name!r:.60}{nearest(name, blocks)}")
    if (blocks[name]["kind"] == "norm") is not (kind == "norm"):
        raise SpecError(f"{where}: expected a {kind}, found the {blocks[name]['kind']} {name}")


def _check_step(step: Step, blocks: Mapping[str, Any], where: str) -> None:
    for key in STEP_NORMS:
        if name := getattr(step, key):
            _check_block(name, "norm", blocks, f"{step.where}.{key}")
    if step.run:
        _check_block(step.run, "block that is no norm", blocks, f"{step.where}.run")
    for branch in step.parallel:
        _check_step(branch, blocks, where)


def _check_norms(stack: Mapping[str, Any], blocks: Mapping[str, Any], where: str) -> None:
    for key, name in (
        ("final_norm", stack.get("final_norm")),
        ("embed.norm", stack.get("embed", {}).get("norm")),
    ):
        if name is not None:
            _check_block(name, "norm", blocks, f"{where}.{key}")


def _check_layers(tables: Mapping[str, Any], where: str) -> None:
    layers = tables.get("layers", {})
    for chain in ("classify", "fill"):
        for name in tables.get(chain, {}).get("layers", ()):
            if name not in layers:
                raise SpecError(
                    f"{where}{chain}.layers: there is no layer {name!r:.60}{nearest(name, layers)}"
                )
    for name, layer in layers.items():
        if "norm" in layer:
            _check_block(layer["norm"], "norm", tables["blocks"], f"{where}layers.{name}.norm")


def _pattern_names(tables: Mapping[str, Any]) -> Iterator[str]:
    """The facts in the names of tensors."""
    for entries in tables.get("tensors", {}).get("places", {}).values():
        for entry in entries.values():
            for source in entry.sources:
                yield from source.pattern.names


def _check_patterns(entry: Entry, known: set[str]) -> None:
    for source in entry.sources:
        for name in source.pattern.names:
            if name not in {*known, "j"}:
                raise SpecError(
                    f"{source.where}: {source.pattern.text!r:.80}: there is no fact {name!r}"
                    f"{nearest(name, known)}"
                )


def _complete(shape: Shape, given: Any, where: str) -> None:
    """SpecError where a key is missing that has no default."""
    if isinstance(shape, BlockTable):
        shape = named_kinds()[given["kind"]].keys
    if isinstance(shape, Named):
        for name, value in given.items():
            _complete(shape.shape, value, f"{where}.{name}")
        return
    if not isinstance(shape, Mapping):
        return
    for key, inner in shape.items():
        at = below(where, key)
        if key in given:
            _complete(inner, given[key], at)
        elif isinstance(inner, Param) and inner.default is REQUIRED:
            raise SpecError(f"{at}: expected {inner.kind.expected}, found nothing")


def _leaves(value: Any) -> Iterator[Given]:
    if isinstance(value, Given):
        yield value
    elif isinstance(value, Step):
        yield from value.values.values()
        yield from (leaf for branch in value.parallel for leaf in _leaves(branch))
    elif isinstance(value, dict):
        yield from (leaf for inner in value.values() for leaf in _leaves(inner))
    elif isinstance(value, tuple):
        yield from (leaf for inner in value for leaf in _leaves(inner))
    elif isinstance(value, Unread):
        yield from value.only or ()
    elif isinstance(value, Entry):
        yield from (s.groups for s in value.sources if s.groups is not None)
