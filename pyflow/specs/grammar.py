"""The keys of a spec and their shapes. docs/add-a-model.md explains them.

A file is read into dicts of the same shape, with `Given`s, steps and tensors as leaves. An unknown
key is an error that names the nearest known ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pyflow.errors import SpecError
from pyflow.specs.block import ACTIVATIONS, Block
from pyflow.specs.blocks import named_kinds
from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.altup import Altup
from pyflow.specs.blocks.ple_inputs import PleInputs
from pyflow.specs.blocks.positions import Positions
from pyflow.specs.blocks.scale import Scale
from pyflow.specs.blocks.token_types import TokenTypes
from pyflow.specs.language.functions import Value
from pyflow.specs.language.shapes import (
    BlockName,
    BlockTable,
    Literals,
    Named,
    Param,
    Shape,
    Steps,
    Table,
    Tensors,
    UnreadKeys,
    Word,
    Words,
)
from pyflow.specs.language.tensors import Entry, read_entries, with_biases
from pyflow.specs.language.unread import Unread
from pyflow.specs.language.values import (
    ROPE_BASE,
    Anything,
    Choice,
    Flag,
    Given,
    Ids,
    Number,
    Whole,
    nearest,
)
from pyflow.text import printable

ROPE: Table = {
    "base": Param(ROPE_BASE),
    "n_dims": Param(Whole(least=2, most=1 << 16)),
    "layout": Param(Choice.of("half", "interleaved"), "half"),
    "scaling": Param(Anything(), None),
    "factor": Param(Number(above=0), None),
    "n_ctx_original": Param(Whole(most=1 << 30), None),
    "fixed": Param(Flag(), False),
    "magnitude": Param(Number(least=0, most=1e6), 0.0),
    "elsewhere": Words(),
    "divisors": Word("the name of a tensor"),
    "short_divisors": Word("the name of a tensor"),
    "long_divisors": Word("the name of a tensor"),
}
EMBED: Table = {
    "scale": Param(Number(), 1.0),
    "norm": BlockName("norm"),
    "positions": Positions.keys,
    "token_types": TokenTypes.keys,
    "ple": PleInputs.keys,
    "shared_with": Word("the name of a stack"),
}
STACK: Table = {
    "when": Param(Flag(), True),
    "start": Param(Whole(least=0, most=(1 << 31) - 1), None),
    "n_layers": Param(Whole(most=4096)),
    "embed": EMBED,
    "altup": Altup.keys,
    "layer": Steps(),
    "final_norm": BlockName("norm"),
}
HEAD: Table = {
    "type": Param(Choice.of("lm", "none"), "lm"),
    "tied": Param(Flag(), False),
    "scale": Param(Number(), 1.0),
    "softcap": Param(Number(least=0), 0.0),
    "bias": Param(Flag(auto=True), False),
}
POOL = Param(Choice.of("none", "first", "mean", "last", "max", "weighted", "mean_sqrt"), "none")
OUTPUT: Table = {"pool": POOL, "normalize": Param(Flag(), False)}
# Layers after the last one, of a text's vector or of single tokens.
LAYER: Table = {
    "size": Param(Whole(most=1 << 24), None),
    "activation": Param(
        Choice.of("none", "tanh", *ACTIVATIONS.words.values(), **ACTIVATIONS.words), "none"
    ),
    "bias": Param(Flag(auto=True), "auto"),
    "norm": BlockName("norm"),
    "tied": Param(Flag(), False),
}
CHAIN: Table = {"pool": POOL, "layers": Words()}
IDS = Ids()
TOKENIZER: Table = {"stop": Param(IDS, ())}
PROMPT: Table = {"template": Word("a chat template")}
_COUNT = Whole(least=-1, most=(1 << 31) - 1)
# By their names in SamplingParams, which has the ranges.
_COUNTS = """
    top_k repeat_last_n dry_allowed_length dry_penalty_last_n mirostat fsd fsd_k fsd_n fsd_random_n
    """
_NUMBERS = """
    temperature dynatemp_range dynatemp_exponent top_p min_p top_n_sigma tfs_z typical_p
    xtc_probability xtc_threshold repeat_penalty presence_penalty frequency_penalty dry_multiplier
    dry_base mirostat_tau mirostat_eta fsd_alpha fsd_beta fsd_random_p
    """
GENERATION: Table = {
    **dict.fromkeys(_NUMBERS.split(), Param(Number(), None)),
    **dict.fromkeys(_COUNTS.split(), Param(_COUNT, None)),
    "n_predict": Param(Whole(most=(1 << 31) - 1), None),
}
STEP: Table = {
    "when": Param(Flag(), True),
    "into": Param(Choice.of("x", "streams"), "x"),
    **Add.keys,
    **Scale.keys,
}
REFUSAL: Table = {"when": Param(Flag(), False), "why": Word()}
COMMON: Table = {
    "facts": Named(Param(Anything())),
    "defaults": Literals(),
    "unread": UnreadKeys(),
    "refuse": Named(REFUSAL),
    "blocks": Named(BlockTable()),
    "ropes": Named(ROPE),
    "decoder": STACK,
    "encoder": STACK,
    "head": HEAD,
    "output": OUTPUT,
    "layers": Named(LAYER),
    "classify": CHAIN,
    "fill": CHAIN,
    "tokenizer": TOKENIZER,
    "prompt": PROMPT,
    "generation": GENERATION,
    "tensors": Tensors(),
}
SPEC: Table = {
    "name": Word(),
    "extends": Word(),
    **COMMON,
    "hf": {"model_type": Words(), **COMMON},
    "gguf": {"architecture": Words(), **COMMON},
    "ctranslate2": {"family": Words(), **COMMON},
    "marian": {"family": Words(), **COMMON},
}
STACKS = ("encoder", "decoder")
STEP_NORMS = ("norm", "post_norm", "out_norm")
LAYER_ROLES = with_biases("weight", "norm")
STACK_ROLES = (
    *("embed", "positions", "token_types", "altup_begin", "altup_merge", *PleInputs.roles),
    *with_biases("embed_norm", "final_norm"),
)


@cache
def step_roles() -> tuple[str, ...]:
    """The roles of tensors in a step: of all kinds of blocks, and of its norms."""
    kinds: tuple[type[Block], ...] = (*named_kinds().values(), Altup, Scale)
    roles = (role for kind in kinds for role in kind.roles)
    return with_biases(*dict.fromkeys((*roles, *STEP_NORMS)))


@cache
def block_keys() -> Table:
    """The keys of all kinds of blocks together.

    A block's kind may be in the file that this one extends, so a key that kinds use differently
    holds anything here. `document` checks it by the block's own kind.
    """
    keys: Table = {"kind": Word()}
    for kind in named_kinds().values():
        for key, shape in kind.keys.items():
            if keys.setdefault(key, shape) != shape:
                keys[key] = Param(Anything())
    return keys


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a layer: x += post_norm(run(norm(x))), then x = out_norm(x), scaled as values say.

    norm, run, post_norm and out_norm are names of blocks, "" for none. parallel: two steps that
    read the same x, instead of run; with a post_norm it is that of their sum.
    """

    name: str
    where: str
    run: str = ""
    norm: str = ""
    post_norm: str = ""
    out_norm: str = ""
    parallel: tuple[Step, ...] = ()
    values: Mapping[str, Given] = field(default_factory=dict)


_STEP_WORDS = ("name", "run", *STEP_NORMS)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def below(where: str, key: str) -> str:
    """A key in a table, for messages: ``x.toml: blocks.norm``."""
    return f"{where}{key}" if where.endswith(": ") else f"{where}.{key}"


def read(shape: Shape, raw: object, where: str) -> Any:
    """A value of TOML, read by a shape. SpecError: it does not fit."""
    if isinstance(shape, Param):
        return _given(shape, raw, where)
    if isinstance(shape, Word | BlockName):
        if not isinstance(raw, str):
            what = shape.expected if isinstance(shape, Word) else f"the name of a {shape.kind}"
            raise SpecError(f"{where}: expected {what}, found {raw!r:.60}")
        return raw
    if isinstance(shape, Words):
        if not isinstance(raw, list) or not all(isinstance(one, str) for one in raw):
            raise SpecError(f"{where}: expected a list of texts, found {raw!r:.60}")
        return tuple(raw)
    if isinstance(shape, Steps):
        return tuple(_steps(raw, where))
    table = _table(raw, where)
    if isinstance(shape, Tensors):
        return _tensors(table, where)
    if isinstance(shape, Literals):
        return {key: _literal(value, below(where, key)) for key, value in table.items()}
    if isinstance(shape, UnreadKeys):
        return {key: Unread.of(value, below(where, key)) for key, value in table.items()}
    if isinstance(shape, Named):
        for name in table:
            if not _NAME.fullmatch(name):
                raise SpecError(
                    f"{where}: expected a name of letters, digits and _, found {name!r:.60}"
                )
        return {name: read(shape.shape, value, below(where, name)) for name, value in table.items()}
    if isinstance(shape, BlockTable):
        shape = block_keys()
    check_keys(table, shape, where)
    return {key: read(shape[key], value, below(where, key)) for key, value in table.items()}


def check_keys(table: Mapping[str, object], known: Mapping[str, object], where: str) -> None:
    """SpecError: a key of `table` is unknown."""
    for key in table:
        if key not in known:
            raise SpecError(
                f"{where.removesuffix(': ')}: there is no key {key!r:.60}{nearest(key, known)}; "
                f"expected {', '.join(known)}"
            )


def _table(raw: object, where: str) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise SpecError(f"{where}: expected a table, found {raw!r:.60}")
    return raw


def _given(param: Param, raw: object, where: str) -> Given:
    given = Given.of(raw, where)
    check_literals(param, given)
    return given


def _literal(raw: object, where: str) -> Value:
    if isinstance(raw, str) and raw.startswith(("$", "=")):
        raise SpecError(f"{where}: expected a value as it stands, found {raw!r:.60}")
    if not isinstance(raw, bool | int | float | str | list | dict):
        raise SpecError(f"{where}: expected a value, found {raw!r:.60}")
    return raw


def check_literals(param: Param, given: Given) -> None:
    """SpecError: a literal value is not of the parameter's kind."""
    for one in given.literals:
        if param.kind.take(one) is None:
            raise SpecError(f"{given.where}: expected {param.kind.expected}, found {one!r:.60}")


def _steps(raw: object, where: str, *, nested: bool = False) -> list[Step]:
    if not isinstance(raw, list) or not raw:
        raise SpecError(f"{where}: expected a list of steps, found {raw!r:.60}")
    return [_step(one, f"{where}[{i}]", nested=nested) for i, one in enumerate(raw)]


def _step(raw: object, where: str, *, nested: bool) -> Step:
    table = _table(raw, where)
    more = [] if nested else ["parallel"]
    check_keys(table, dict.fromkeys((*_STEP_WORDS, *STEP, *more)), where)
    words = {k: read(Word(), v, below(where, k)) for k, v in table.items() if k in _STEP_WORDS}
    values = {k: read(STEP[k], v, below(where, k)) for k, v in table.items() if k in STEP}
    branches: list[Step] = []
    if "parallel" in table:
        branches = _steps(table["parallel"], below(where, "parallel"), nested=True)
        if len(branches) != 2:
            raise SpecError(f"{where}.parallel: expected two steps, found {len(branches)}")
    if ("run" in words) is bool(branches):
        raise SpecError(f"{where}: expected either run, the name of a block, or parallel")
    if not _NAME.fullmatch(words.get("name", "")):
        raise SpecError(f"{where}.name: expected a name of letters, digits and _")
    return Step(where=where, parallel=tuple(branches), values=values, **words)


def _tensors(raw: dict[str, object], where: str) -> dict[str, Any]:
    """prefix and ignore: tuples; per place (the head's is ""), lists of entries."""
    check_keys(
        raw, dict.fromkeys(("prefix", "ignore", "head", "head_bias", "layers", *STACKS)), where
    )
    found: dict[str, Any] = {}
    for key in ("prefix", "ignore"):
        if key in raw:
            found[key] = read(Words(), raw[key], f"{where}.{key}")
    head = {key: value for key, value in raw.items() if key in ("head", "head_bias")}
    if head:
        found["places"] = {("", ""): read_entries(head, where, ("head", "head_bias"))}
    for name, value in _table(raw.get("layers", {}), f"{where}.layers").items():
        at = f"{where}.layers.{printable(name)}"
        entries = read_entries(_table(value, at), at, LAYER_ROLES)
        found.setdefault("places", {})["layers", name] = entries
    for stack in STACKS:
        if stack not in raw:
            continue
        table = _table(raw[stack], f"{where}.{stack}")
        places: dict[tuple[str, str], dict[str, Entry]] = found.setdefault("places", {})
        own = {key: value for key, value in table.items() if key in STACK_ROLES}
        places[stack, ""] = read_entries(own, f"{where}.{stack}", STACK_ROLES)
        for step, value in table.items():
            if step in own:
                continue
            at = f"{where}.{stack}.{printable(step)}"
            if not isinstance(value, dict):  # no step, so it was meant as a role
                check_keys({step: value}, dict.fromkeys(STACK_ROLES), f"{where}.{stack}")
            places[stack, step] = read_entries(_table(value, at), at, step_roles())
    return found
