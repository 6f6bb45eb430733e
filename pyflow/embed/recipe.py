"""How a model's texts become vectors, as the files of sentence-transformers say.

modules.json lists a transformer, poolings, dense layers and normalization; each has a folder with
its own config.json. They are as untrusted as every file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import is_file, read_json
from pyflow.specs.model_spec import ModelSpec, Pool

_MAX_NBYTES = 1 << 20
_MAX_MODULES = 16
_MAX_POOLS = 6
# In the order in which several are joined.
_FLAGS: Mapping[str, Pool] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted",
    "pooling_mode_lasttoken": "last",
}
_WORDS: Mapping[str, Pool] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted",
    "lasttoken": "last",
}
_ACTIVATIONS = {
    "Tanh": "tanh",
    "Identity": "none",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
POOLS: tuple[Pool, ...] = tuple(pool for pool in get_args(Pool) if pool != "none")


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A layer with a file of its own."""

    folder: Path
    n_in: int
    n_out: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is done before and after the model itself."""

    pools: tuple[Pool, ...]
    """Joined in this order."""
    normalize: bool
    max_tokens: int
    """Of a text, those that begin and end it included."""
    dense: tuple[DenseModule, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What precedes a text, by names such as query and document."""
    default_prompt: str | None = None
    include_prompt: bool = True
    """Whether the prompt's tokens count in pools."""
    dimensions: int | None = None
    """So many values of a vector are kept; None: all."""

    def prompt(self, name: str | None) -> str:
        """The prompt of this name, or the default one. UnsupportedError, naming all: unknown."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UnsupportedError(f"prompt {name!r:.60}: this model has {known}")
        return self.prompts[name]


class _Module(msgspec.Struct):
    type: str
    path: str = ""


class _Dense(msgspec.Struct):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


class _Bert(msgspec.Struct):
    max_seq_length: int | None = None


class _Prompts(msgspec.Struct):
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    truncate_dim: int | None = None


def read_recipe(checkpoint: Checkpoint, spec: ModelSpec) -> Recipe:
    """The recipe in the files beside a checkpoint, or else of its family; of a model that writes,
    the normalized state of the last token.

    FormatError, naming file and field: a file is broken. UnsupportedError: a module that pyflow
    does not run.
    """
    writes = not spec.is_encoder
    pool: Pool = "last" if writes else "mean" if spec.pool == "none" else spec.pool
    recipe = Recipe((pool,), spec.normalize or writes, spec.n_ctx_train - writes)
    folder = checkpoint.path.parent
    if checkpoint.format == "GGUF":
        return recipe
    if is_file(path := folder / "config_sentence_transformers.json"):
        recipe = _with_prompts(recipe, path)
    for name in ("sentence_bert_config.json", "sentence_roberta_config.json"):
        if is_file(path := folder / name):
            most = read_json(path, _Bert, max_nbytes=_MAX_NBYTES).max_seq_length
            if most is not None and most < 1:
                raise FormatError(f"{path}: max_seq_length: expected 1 or more, found {most}")
            recipe = replace(recipe, max_tokens=min(most or recipe.max_tokens, recipe.max_tokens))
            break
    if is_file(path := folder / "modules.json"):
        return _with_modules(recipe, path, spec.n_embd)
    if is_file(path := folder / "1_Pooling" / "config.json"):
        return _with_pools(recipe, path)
    return recipe


def _with_prompts(recipe: Recipe, path: Path) -> Recipe:
    found = read_json(path, _Prompts, max_nbytes=_MAX_NBYTES)
    default = found.default_prompt_name
    if default is not None and default not in found.prompts:
        raise FormatError(
            f"{path}: default_prompt_name: expected one of prompts, found {default!r:.60}"
        )
    if found.truncate_dim is not None and found.truncate_dim < 1:
        raise FormatError(f"{path}: truncate_dim: expected 1 or more, found {found.truncate_dim}")
    return replace(
        recipe,
        prompts=found.prompts,
        default_prompt=default,
        dimensions=found.truncate_dim,
    )


def _with_modules(recipe: Recipe, path: Path, n_embd: int) -> Recipe:
    modules = read_json(path, list[_Module], max_nbytes=_MAX_NBYTES)
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if not 1 <= len(modules) <= _MAX_MODULES or kinds[0] != "Transformer" or modules[0].path:
        raise FormatError(
            f"{path}: expected up to {_MAX_MODULES} modules, the first a Transformer in this "
            f"folder, found {', '.join(kinds)[:80] or 'none'}"
        )
    recipe = replace(recipe, normalize=False)
    dense: list[DenseModule] = []
    for at, (module, kind) in enumerate(zip(modules[1:], kinds[1:], strict=True), start=1):
        where = f"{path}: [{at}]"
        if kind == "Pooling" and at == 1:
            recipe = _with_pools(recipe, _inside(path, module, where) / "config.json")
        elif kind == "Dense" and at > 1 and not recipe.normalize:
            dense.append(_dense(_inside(path, module, where)))
        elif kind == "Normalize" and at > 1:
            recipe = replace(recipe, normalize=True)
        else:
            raise UnsupportedError(
                f"{where}.type: expected Transformer, Pooling, Dense and Normalize in this order, "
                f"found {module.type!r:.80}"
            )
    if dense and dense[0].n_in != (width := len(recipe.pools) * n_embd):
        raise FormatError(
            f"{dense[0].folder}: in_features: expected {width}, as come out before it, found "
            f"{dense[0].n_in}"
        )
    return replace(recipe, dense=tuple(dense))


def _inside(path: Path, module: _Module, where: str) -> Path:
    """A module's folder. FormatError: it is not a folder in that of modules.json."""
    name = module.path
    if Path(name).name != name or name in ("", "..", "."):
        raise FormatError(f"{where}.path: expected a folder beside the file, found {name!r:.60}")
    return path.parent / name


def _with_pools(recipe: Recipe, path: Path) -> Recipe:
    config = read_json(path, dict[str, Any], max_nbytes=_MAX_NBYTES)
    if (given := config.get("pooling_mode")) is not None:
        words = [given] if isinstance(given, str) else given
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
            raise FormatError(
                f"{path}: pooling_mode: expected a word or a list, found {given!r:.60}"
            )
        unknown = [word for word in words if word not in _WORDS]
        if unknown:
            raise UnsupportedError(
                f"{path}: pooling_mode: expected {', '.join(_WORDS)}, found {unknown[0]!r:.60}"
            )
        pools = [_WORDS[word] for word in words]
    else:
        pools = list(_flagged(config, path))
    if len(pools) > _MAX_POOLS:
        raise FormatError(f"{path}: expected up to {_MAX_POOLS} pools, found {len(pools)}")
    include = config.get("include_prompt", True)
    if not isinstance(include, bool):
        raise FormatError(f"{path}: include_prompt: expected true or false, found {include!r:.60}")
    return replace(recipe, pools=tuple(pools or ["mean"]), include_prompt=include)


def _flagged(config: Mapping[str, Any], path: Path) -> Iterator[Pool]:
    for key, value in config.items():
        if key.startswith("pooling_mode_") and not isinstance(value, bool):
            raise FormatError(f"{path}: {key}: expected true or false, found {value!r:.60}")
        if key.startswith("pooling_mode_") and value and key not in _FLAGS:
            raise UnsupportedError(f"{path}: {key}: expected one of {', '.join(_FLAGS)}")
    yield from (pool for key, pool in _FLAGS.items() if config.get(key))


def _dense(folder: Path) -> DenseModule:
    path = folder / "config.json"
    config = read_json(path, _Dense, max_nbytes=_MAX_NBYTES)
    name = config.activation_function.rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{path}: activation_function: expected one of {', '.join(_ACTIVATIONS)}, found "
            f"{config.activation_function!r:.80}"
        )
    for key in ("in_features", "out_features"):
        if not 1 <= (n := cast("int", getattr(config, key))) <= 1 << 20:
            raise FormatError(f"{path}: {key}: expected 1 to {1 << 20}, found {n}")
    return DenseModule(
        folder, config.in_features, config.out_features, config.bias, _ACTIVATIONS[name]
    )
