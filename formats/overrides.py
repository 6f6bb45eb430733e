"""Values that a user puts in place of a model's own, for one load."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from pyflow.errors import FormatError, PyflowError

RopeScaling: TypeAlias = Literal["none", "linear", "yarn"]
Single: TypeAlias = bool | int | float | str

# What a tokenizer reads of GGUF's metadata besides its lists, in the file or not.
_OF_TOKENIZERS = re.compile(r"tokenizer\.(chat_template|ggml\.(add_\w+|\w+_token_id|model|pre))")
_MAX_FACTOR = 1024.0


@dataclass(frozen=True, slots=True)
class Overrides:
    """Replaces keys of a model's configuration, and how its positions turn.

    keys: of GGUF's metadata by their full names, or of config.json with dots between the names of
    nested objects. rope_base: the base of frequencies. rope_scaling: the law that replaces the
    model's own; None means linear if there is a factor. rope_factor: how many times as long the
    context becomes. rope_n_ctx_original: for yarn, the tokens that the model was trained for; None:
    its own context. Ropes of layers with windows stay as they are.
    PyflowError: a value is out of range, or says nothing without another.
    """

    keys: Mapping[str, Single] = field(default_factory=lambda: MappingProxyType({}))
    rope_base: float | None = None
    rope_scaling: RopeScaling | None = None
    rope_factor: float | None = None
    rope_n_ctx_original: int | None = None

    def __post_init__(self) -> None:
        keys: object = self.keys
        if not isinstance(keys, Mapping):
            raise PyflowError(f"keys: expected names and values, as a dict, found {keys!r:.60}")
        for key, value in keys.items():
            if not key or not isinstance(key, str) or not isinstance(value, Single):
                raise PyflowError(
                    f"override of {key!r:.80}: expected a name and true, false, a number or a text,"
                    f" found {value!r:.60}"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise PyflowError(f"override of {key}: expected a finite number, found {value}")
            if self.rope_base is not None and key.endswith(("rope_theta", "rope.freq_base")):
                raise PyflowError(f"rope_base: expected none beside an override of {key}")
        _check_number("rope_base", self.rope_base, 1.0, 1e12)
        _check_number("rope_factor", self.rope_factor, 1 / _MAX_FACTOR, _MAX_FACTOR)
        law, factor, original = self.rope_scaling, self.rope_factor, self.rope_n_ctx_original
        if law not in [None, *get_args(RopeScaling)]:
            raise PyflowError(f"rope_scaling: expected none, linear or yarn, found {law!r:.60}")
        if law in ("linear", "yarn") and factor is None:
            raise PyflowError(f"rope_factor: expected one with scaling {law}, found none")
        if law == "none" and factor is not None:
            raise PyflowError(f"rope_factor: expected none with scaling none, found {factor:g}")
        if original is not None and (
            law != "yarn" or type(original) is not int or not 1 <= original <= 1 << 30
        ):
            raise PyflowError(
                f"rope_n_ctx_original: expected 1 to {1 << 30:,} tokens, with scaling yarn, found "
                f"{original!r:.60} with {law or 'no scaling'}"
            )

    def __bool__(self) -> bool:
        return self != NO_OVERRIDES

    @property
    def law(self) -> RopeScaling | None:
        """The law of scaling; None: the model's own."""
        return self.rope_scaling or ("linear" if self.rope_factor is not None else None)

    def on_metadata(self, metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
        """GGUF's metadata with these keys. FormatError: the file has a value of another type."""
        for key, value in self.keys.items():
            if key in metadata:
                _check_type(key, metadata[key], value, where)
        return {**metadata, **self.keys}

    def on_config(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A config.json with these keys. FormatError: a value of another type is there."""
        changed = dict(config)
        for key, value in self.keys.items():
            *parents, last = key.split(".")
            inner = changed
            for name in parents:
                found = inner.get(name) or {}
                if not isinstance(found, dict):
                    raise FormatError(
                        f"{where}: override of {key}: expected an object at {name}, found "
                        f"{found!r:.60}"
                    )
                inner[name] = dict(found)
                inner = inner[name]
            if inner.get(last) is not None:
                _check_type(key, inner[last], value, where)
            inner[last] = value
        return changed

    def parameters(self, table: str) -> frozenset[str]:
        """The names that the keys replace in a table, which is named as in messages."""
        pairs = [(parent, name) for parent, _, name in (key.rpartition(".") for key in self.keys)]
        return frozenset(
            name
            for parent, name in pairs
            if parent and table.endswith((f" {parent}", f".{parent}"))
        )

    @property
    def of_ropes(self) -> str:
        """The first field that changes ropes, or none: ''."""
        given = {
            "rope_base": self.rope_base,
            "rope_factor": self.rope_factor,
            "rope_scaling": self.rope_scaling,
        }
        return next((name for name, value in given.items() if value is not None), "")

    def is_known(self, key: str) -> bool:
        """Whether tokenizers read it."""
        return _OF_TOKENIZERS.fullmatch(key) is not None


def _check_number(name: str, value: object, least: float, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and least <= cast("float", value) <= most):
        raise PyflowError(f"{name}: expected {least:g} to {most:g}, found {value!r:.60}")


def _check_type(key: str, there: object, value: Single, where: str) -> None:
    """FormatError: `value` cannot stand where `there` stood. Numbers may replace lists of them."""
    first = there
    if isinstance(there, np.ndarray | list) and len(there):
        first = there[0]
    expected, found = _type(first), _type(value)
    if expected != found:
        raise FormatError(
            f"{where}: override of {key}: expected {expected}, as in the file, found {found} "
            f"{value!r:.60}"
        )


def _type(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "true or false"
    if isinstance(value, int | float | np.number):
        return "a number"
    return "a text" if isinstance(value, str) else "a value of another type"


NO_OVERRIDES = Overrides()
