"""Opens the files of a speculator: a folder with config.json and weights, or the weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from pyflow import _core, formats
from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import read_json
from pyflow.quant import read_as
from pyflow.speculate.trained import kangaroo, medusa
from pyflow.speculate.trained.kangaroo import KangarooConfig
from pyflow.speculate.trained.layout import Config, within
from pyflow.speculate.trained.medusa import MedusaConfig
from pyflow.speculate.trained.mlp import MlpConfig
from pyflow.speculate.trained.tensors import Tensors

if TYPE_CHECKING:
    from pyflow._core import HeadsSpec
    from pyflow.engine.loaded import LoadedModel
    from pyflow.engine.model_files import ModelFiles
    from pyflow.specs.model_spec import ModelSpec

_MAX_CONFIG = 1 << 20
# What float matrices are packed as: reading them is what a draft costs.
PACKED = "Q8_0"
_CONFIGS: dict[str, type[MlpConfig | MedusaConfig | KangarooConfig]] = {
    "mlp_speculator": MlpConfig,
    "medusa": MedusaConfig,
    "llama": KangarooConfig,  # of one layer
}
# Of tensors' names; files may leave them out.
_PREFIXES = {"mlp": ("speculator.",), "medusa": medusa.PREFIXES, "kangaroo": ("model.",)}


class _Type(msgspec.Struct):
    model_type: str | None = None
    medusa_num_heads: int | None = None


class Target(Protocol):
    """What heads need of their model. It may have a part of the layers alone."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def stage(self) -> _core.Stage: ...
    @property
    def pool(self) -> _core.ThreadPool: ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """Kangaroo's attention."""

    model: LoadedModel
    stage: _core.Stage
    exit_layer: int
    """So many layers of the model run before it."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A speculator whose weights are loaded, for one model."""

    path: Path
    config: Config
    heads: _core.Heads
    adapter: Adapter | None = None

    @property
    def kind(self) -> str:
        """As in --spec."""
        return self.config.kind


def load(
    path: str | Path,
    model: LoadedModel,
    *,
    exit_layer: int | None = None,
    pack_as: str | None = PACKED,
    whole: ModelFiles | None = None,
) -> Trained:
    """The speculator at path, for a model. exit_layer: for Kangaroo, whose public files do not say
    it: so many layers run before the adapter. pack_as: the format of its float matrices; None: as
    they are stored. whole: the model, where the one that is loaded has its first layers alone.

    FormatError, ShapeError, UnsupportedError: no speculator, a broken one, or one for another
    model.
    """
    path = Path(path)
    config = read_config(path)
    if config.base is not None:
        config.base.check(str(path), whole or model)
    checkpoint = formats.open(path)
    tensors = Tensors(checkpoint, _prefix(config, checkpoint), kangaroo.IGNORED)
    native = config.native(tensors, model.spec.n_embd, model.spec.n_vocab)
    stage = None
    if exit_layer is not None and config.kind != "kangaroo":
        raise UnsupportedError(f"{path}: an exit layer is for kangaroo, this is {config.kind}")
    if isinstance(config, KangarooConfig):
        exit_layer = exit_layer_of(path, config, whole or model, exit_layer)
        stage = config.adapter(tensors)
    tensors.finish()
    packed = pack_as if pack_as is None or _packs(checkpoint, pack_as) else None
    heads = _heads(checkpoint, native, model, packed)
    adapter = None
    if stage is not None and exit_layer is not None:
        built = _core.Stage(checkpoint.native, stage, model.pool, pack_as=packed)
        adapter = Adapter(model, built, exit_layer)
    return Trained(path, config, heads, adapter)


def check(path: str | Path, model: ModelFiles) -> str:
    """The kind of the speculator at path. UnsupportedError: it is for another model."""
    config = read_config(path)
    if config.base is not None:
        config.base.check(str(path), model)
    return config.kind


def load_heads(path: str | Path, base: Target) -> _core.Heads:
    """The heads of a speculator, for the stage that has the model's head. Whether its tokens are
    those of the model is checked elsewhere. Raises as `load`, also for a kangaroo."""
    path = Path(path)
    config = read_config(path)
    if isinstance(config, KangarooConfig):
        raise UnsupportedError(f"{path}: expected heads, found kangaroo; use --spec kangaroo")
    checkpoint = formats.open(path)
    tensors = Tensors(checkpoint, _prefix(config, checkpoint), kangaroo.IGNORED)
    native = config.native(tensors, base.spec.n_embd, base.spec.n_vocab)
    tensors.finish()
    return _heads(checkpoint, native, base, PACKED if _packs(checkpoint, PACKED) else None)


def _heads(
    checkpoint: Checkpoint, native: HeadsSpec, base: Target, packed: str | None
) -> _core.Heads:
    tables, tied = _tables(native, base), base.spec.is_tied
    return _core.Heads(checkpoint.native, native, base.stage, packed, tables, tied)


def _tables(native: HeadsSpec, base: Target) -> _core.Stage | None:
    """The embedding and the head that heads use, where the base has them elsewhere."""
    has_embedding, has_head = base.stage.host_tables
    if base.spec.is_tied and (has_embedding or has_head):
        return None
    wants_embedding = any("token_projection" in head for head in native["heads"])
    wants_head = any("head" not in head for head in native["heads"])
    embedding, head = wants_embedding and not has_embedding, wants_head and not has_head
    if not embedding and not head:
        return None
    tables = base.spec.tables(embedding=embedding, head=head)
    return _core.Stage(base.checkpoint.native, tables, base.pool, pack_as=base.checkpoint.pack_as)


def exit_layer_of(
    path: Path, config: KangarooConfig, model: ModelFiles, given: int | None = None
) -> int:
    """So many layers run before the adapter. UnsupportedError: neither says it; FormatError."""
    layer = given or config.pyflow.exit_layer
    if not layer:
        raise UnsupportedError(
            f"{path}: expected an exit layer in config.json, found none; say it (--exit-layer), as "
            "in 2 for Vicuna 7B"
        )
    return within(str(path), "exit layer", layer, 1, model.spec.n_layers - 1)


def read_config(path: str | Path) -> Config:
    """config.json in a speculator's folder, or beside its weights. FormatError, UnsupportedError:
    it is none."""
    if not Path(path).exists():
        raise FormatError(f"{path}: expected a speculator's folder, found nothing there")
    given, folder = path, Path(path) if Path(path).is_dir() else Path(path).parent
    path = folder / "config.json"
    if not path.exists():
        raise FormatError(
            f"{given}: expected a speculator, found no config.json in {folder}; give its folder"
        )
    found = read_json(path, _Type, max_nbytes=_MAX_CONFIG)
    kind = found.model_type
    if found.medusa_num_heads is not None:
        kind = "medusa"  # Medusa's own files name the model's type
    if kind not in _CONFIGS:
        raise UnsupportedError(
            f"{path}: model_type: expected a speculator, {' or '.join(_CONFIGS)}, found {kind!r}"
        )
    try:
        return read_json(path, _CONFIGS[kind], max_nbytes=_MAX_CONFIG)
    except FormatError as error:
        raise FormatError(f"{error}; expected the config.json of a {kind}") from None


def _prefix(config: Config, checkpoint: Checkpoint) -> str:
    prefixes = {"medusa": medusa.PREFIXES, "kangaroo": ("model.",)}.get(
        config.kind, ("speculator.",)
    )
    for prefix in prefixes:
        if any(t.name.startswith(prefix) for t in checkpoint.tensors):
            return prefix
    return prefixes[0]


def _packs(checkpoint: Checkpoint, dtype: str) -> bool:
    """Whether all float matrices are whole blocks of a format."""
    form = read_as(dtype)
    assert form is not None
    return all(
        t.shape[-1] % form.block == 0
        for t in checkpoint.tensors
        if len(t.shape) > 1 and (of := read_as(t.dtype)) is not None and of.block == 1
    )
