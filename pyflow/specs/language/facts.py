"""Facts of one model: numbers and texts by the names that its spec gives them.

They come from the model's configuration, a config.json or the checkpoint's metadata; a spec says
which key holds what. Facts may depend on the layer, by ``i``.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from pyflow._core import read_head
from pyflow.errors import FormatError, SpecError
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.functions import Value
from pyflow.specs.language.shapes import REQUIRED, Param, Table
from pyflow.specs.language.values import ROPE_BASE, Given, Kind, Number, Resolved, Whole
from pyflow.text import printable

_MAX_CONFIG = 4 << 20
_MAX_DEPTH = 24
_MAX_NAME = 100

# Facts that have the same meaning in all specs. Every model needs the first two.
STANDARD: dict[str, Kind] = {
    "n_embd": Whole(most=1 << 20),
    "n_ctx": Whole(most=1 << 30),
    "n_vocab": Whole(),
    "n_layers": Whole(most=4096),
    "n_heads": Whole(most=1 << 16),
    "n_kv_heads": Whole(most=1 << 16),
    "head_dim": Whole(most=1 << 16),
    "n_ff": Whole(),
    "n_experts": Whole(least=0, most=1 << 12),
    "n_experts_used": Whole(least=0, most=1 << 12),
    "eps": Number(least=0, most=1),
    "window": Whole(least=0, most=1 << 30),
    "rope_base": ROPE_BASE,
    "rope_dims": Whole(least=2, most=1 << 16),
}

OF_ALL_MODELS = ("n_embd", "n_ctx", "n_vocab", "n_layers")
"""Facts of the whole model, needed without a layer. Others may differ between layers."""
_BY_LAYER = frozenset({"layer_types", "turned_layers"})
"""Lists of config.json with a value for each layer, where specs give them these names."""


class Source(Protocol):
    """A model's own configuration."""

    @property
    def kind(self) -> str:
        """The section of a spec for such models: hf, gguf, ctranslate2 or marian."""

    @property
    def name(self) -> str:
        """What the model is called."""

    @property
    def where(self) -> str:
        """Its file, for messages."""

    def get(self, key: str) -> Value | None:
        """The value of a key; None if it is absent or null."""

    def has(self, key: str) -> bool:
        """Whether there is such a key; it may be null."""

    def keys(self) -> Iterable[str]: ...
    def label(self, key: str) -> str:
        """File and key, for messages."""


class GgufSource:
    """The metadata of a GGUF file: ``$block_count`` is ``<architecture>.block_count``."""

    kind = "gguf"

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        """FormatError: the metadata name no architecture."""
        self._path, self._metadata, self.where = path, metadata, str(path)
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise FormatError(
                f"{path}: general.architecture: expected the name of a model family, "
                f"found {architecture!r:.60}; is this a model file?"
            )
        self.family = architecture
        name = metadata.get("general.name")
        self.name = printable(name if isinstance(name, str) else path.stem)[:_MAX_NAME]

    def get(self, key: str) -> Value | None:
        full = f"{self.family}.{key}"
        value = self._metadata.get(full)
        if value is None:  # the keys below it, as a table
            start = f"{full}."
            below = {
                k.removeprefix(start): v for k, v in self._metadata.items() if k.startswith(start)
            }
            return {k: _plain(v) for k, v in below.items()} or None
        return _plain(value)

    def has(self, key: str) -> bool:
        return f"{self.family}.{key}" in self._metadata

    def keys(self) -> Iterable[str]:
        start = f"{self.family}."
        return [k.removeprefix(start) for k in self._metadata if k.startswith(start)]

    def label(self, key: str) -> str:
        return f"{self._path}: {printable(f'{self.family}.{key}')}"


class ConfigSource:
    """A config.json: ``$rope_scaling.factor`` is a key of the object under ``rope_scaling``."""

    kind = "hf"

    def __init__(self, path: Path, config: Mapping[str, Any], root: str = "") -> None:
        """root: the key of the language model's object in the config of a multimodal model."""
        self._path, self._root, self.where = path, root, str(path)
        self._config = config[root] if root else config
        self.name = printable(path.parent.resolve().name)[:_MAX_NAME]

    @property
    def family(self) -> str:
        found = self._config.get("model_type")
        if not isinstance(found, str):
            raise FormatError(
                f"{self.label('model_type')}: expected the name of a model family, "
                f"found {'nothing' if found is None else repr(found)[:60]}"
            )
        return found

    def get(self, key: str) -> Value | None:
        found = _plain(self._find(key)[1])
        return None if found == {} else found

    def has(self, key: str) -> bool:
        return self._find(key)[0]

    def keys(self) -> Iterable[str]:
        return self._config

    def _find(self, key: str) -> tuple[bool, Any]:
        """Whether there is such a key, and its value."""
        found: Any = self._config
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                return False, None
            found = found[part]
        return True, found

    def label(self, key: str) -> str:
        return f"{self._path}: {self._root}{'.' if self._root else ''}{printable(key)}"


class FileSource:
    """Values that a file of weights says of its model itself, by the names of facts."""

    def __init__(self, path: Path, kind: str, family: str, values: Mapping[str, Any]) -> None:
        self._path, self._values, self.where = path, values, str(path)
        self.kind, self.family = kind, family
        self.name = printable(path.parent.resolve().name)[:_MAX_NAME]

    def get(self, key: str) -> Value | None:
        return self._values.get(key)

    def has(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> Iterable[str]:
        return self._values

    def label(self, key: str) -> str:
        return f"{self._path}: {printable(key)}"


class NoSource:
    """A checkpoint without a configuration: the spec says everything."""

    kind = "hf"

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, printable(path.stem)[:_MAX_NAME]
        self.where = str(path)

    def get(self, key: str) -> Value | None:  # noqa: ARG002
        return None

    def has(self, key: str) -> bool:  # noqa: ARG002
        return False

    def keys(self) -> Iterable[str]:
        return ()

    def label(self, key: str) -> str:
        return f"{self._path.with_name('config.json')} (absent): {printable(key)}"


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. FormatError: it is too large, or not a JSON object."""
    raw = read_head(path, _MAX_CONFIG + 1)
    if len(raw) > _MAX_CONFIG:
        raise FormatError(f"{path}: expected at most {_MAX_CONFIG:,} bytes, found more")
    try:
        config = json.loads(raw)
    except RecursionError:
        raise FormatError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or an integer of thousands of digits
        raise FormatError(f"{path}: expected JSON: {error}") from None
    if not isinstance(config, dict):
        raise FormatError(f"{path}: expected a JSON object, found {config!r:.60}")
    return config


def _plain(value: Any) -> Value | None:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return value
    return str(value)


class Facts:
    """The values of the names in a spec. `layer` is the i of the lookups that follow.

    defaults: of keys that are absent from the source; null is not absent.
    """

    def __init__(
        self,
        given: Mapping[str, Given],
        source: Source,
        tensors: Container[str] = (),
        defaults: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        self._given, self._source, self._tensors = given, source, tensors
        self._defaults = defaults
        self._layer: int | None = None
        self._asked_layer = False
        self._active: list[str] = []
        self._fixed: dict[str, Resolved | UnresolvedError] = {}
        self._of_layer: dict[str, Resolved | UnresolvedError] = {}

    @property
    def layer(self) -> int | None:
        return self._layer

    @layer.setter
    def layer(self, i: int | None) -> None:
        self._layer = i
        self._of_layer.clear()

    def fact(self, name: str) -> Value:
        return self.resolved(name).value

    def resolved(self, name: str) -> Resolved:
        """A fact and its origin. UnresolvedError: it is unknown. FormatError: its value is not of
        the kind that STANDARD gives."""
        if name == "i":
            self._asked_layer = True
            if self._layer is None:
                raise UnresolvedError("a layer")
            return Resolved(self._layer, "i", True)
        found = self._fixed.get(name)
        if found is None:
            found = self._of_layer.get(name)
            self._asked_layer |= found is not None
        if found is None:
            found = self._look(name)
        if isinstance(found, UnresolvedError):
            raise UnresolvedError(str(found))
        return found

    def _look(self, name: str) -> Resolved | UnresolvedError:
        given = self._given.get(name)
        if given is None:
            return UnresolvedError(f"fact {name}")
        if name in self._active or len(self._active) >= _MAX_DEPTH:
            way = " -> ".join([*self._active[-8:], name])
            raise SpecError(f"{given.where}: facts need each other in a circle: {way}")
        before, self._asked_layer = self._asked_layer, False
        self._active.append(name)
        found: Resolved | UnresolvedError
        try:
            found = self._typed(name, self._at_layer(name, given.resolve(self)))
        except UnresolvedError as error:
            found = error
        finally:
            self._active.pop()
        (self._of_layer if self._asked_layer else self._fixed)[name] = found
        self._asked_layer |= before
        return found

    def _at_layer(self, name: str, found: Resolved) -> Resolved:
        """A value, or that of the layer in an array of GGUF, which has one for each layer.

        FormatError: there are more or fewer, or they differ where all layers must have one value.
        """
        values = found.value
        if name in _BY_LAYER and isinstance(values, list):
            if len(values) != (n_layers := self.integer("n_layers", 0)):
                raise found.fault(f"{n_layers} values, one for each layer")
            return found
        if self._source.kind != "gguf" or found.is_from_spec or not isinstance(values, list):
            return found
        n_layers = 0 if name in OF_ALL_MODELS else self.integer("n_layers", 0)
        if len(values) != n_layers or not values:
            raise found.fault(f"{n_layers} values, one for each layer" if n_layers else "one value")
        if any(value != values[0] for value in values):
            self._asked_layer = True
            if self._layer is None:
                raise found.fault("one value for all layers")
        return replace(found, value=cast("Value", values[self._layer or 0]))

    @staticmethod
    def _typed(name: str, found: Resolved) -> Resolved:
        kind = STANDARD.get(name)
        if kind is None:
            return found
        value = kind.take(found.value)
        if value is None:
            raise found.fault(kind.expected)
        return Resolved(value, found.where, found.is_from_spec)  # type: ignore[arg-type]

    def value(self, shape: Table, table: Mapping[str, Any], key: str) -> Any:
        """The value of a key of `table`, checked by `shape`; its default if nothing resolves.

        FormatError: it is required and nothing resolves, or it is of another kind.
        """
        param = cast("Param", shape[key])
        given = table.get(key)
        if given is None:
            return param.default
        try:
            found = given.resolve(self)
        except UnresolvedError as error:
            if param.default is not REQUIRED:
                return param.default
            raise FormatError(f"{error}: expected {param.kind.expected}, found nothing") from None
        taken = param.kind.take(found.value)
        if taken is None:
            raise found.fault(param.kind.expected)
        return taken

    def integer(self, name: str, default: int | None = None) -> int:
        """A standard fact that is an integer."""
        try:
            return cast("int", self.fact(name))
        except UnresolvedError as error:
            if default is not None:
                return default
            raise FormatError(f"{error}: expected an integer, found nothing") from None

    def known(self) -> dict[str, Resolved]:
        """All facts that do not depend on the layer."""
        found = {}
        self.layer = None
        for name in self._given:
            try:
                found[name] = self.resolved(name)
            except (UnresolvedError, FormatError):  # an array that differs between layers
                continue
        return found

    def config(self, key: str) -> Value | None:
        found = self._source.get(key)
        if found is None and key in self._defaults and not self._source.has(key):
            return self._defaults[key]
        return found

    @property
    def where(self) -> str:
        """The file of the configuration, for messages."""
        return self._source.where

    def has_key(self, key: str) -> bool:
        """Whether the configuration has a key, perhaps with null."""
        return self._source.has(key)

    def keys(self) -> Iterable[str]:
        """The keys of the configuration: those of config.json's outermost object, all of GGUF."""
        return self._source.keys()

    def config_label(self, key: str) -> str:
        return self._source.label(key)

    def has_tensor(self, name: str) -> bool:
        return name in self._tensors
