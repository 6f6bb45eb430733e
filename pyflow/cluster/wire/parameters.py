"""Sampling parameters as JSON: numbers by name, and those of logit_bias by token."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pyflow.cluster.wire.layouts import Layout, Wire, WireError, text
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

_NAMES = [field.name for field in dataclasses.fields(SamplingParams)]
_WHOLE = {"top_k", "repeat_last_n", "seed", "n_logprobs"}
# JSON has no infinity, but numbers that are read as one; a bias of -inf forbids a token.
_INFINITY, _HUGE = "-Infinity", "-1e999"


def to_json(sampling: SamplingParams) -> str:
    """The one text of these parameters. WireError where a seed is missing: ranks must share it."""
    if sampling.seed is None:
        raise WireError("sampling.seed: expected a number, found None; call seeded() first")
    values: dict[str, Any] = {
        name: (int if name in _WHOLE else float)(getattr(sampling, name))
        for name in _NAMES
        if name != "logit_bias"
    }
    biases = {int(token): float(bias) for token, bias in sampling.logit_bias.items()}
    values["logit_bias"] = dict(sorted(biases.items()))
    return json.dumps(values, separators=(",", ":")).replace(_INFINITY, _HUGE)


def from_json(given: str) -> SamplingParams:
    """The parameters of a text. WireError for what `to_json` would not have written."""
    try:
        values = json.loads(given)
        biases = values.pop("logit_bias")
        if not _are_numbers(values, _NAMES) or not _are_numbers(biases, biases):
            raise WireError(f"sampling: expected numbers by the names {_NAMES}")
        values["logit_bias"] = {int(token): bias for token, bias in biases.items()}
        sampling = SamplingParams(**values)
        same = to_json(sampling) == given
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as e:
        raise WireError(f"sampling: expected numbers as JSON, found {e!r:.200}") from None
    except PyflowError as e:
        raise WireError(f"sampling: {e}") from None
    if not same:
        raise WireError("sampling: expected the shortest JSON, each name once and in order")
    return sampling


def parameters(max_nbytes: int) -> Layout:
    """Their JSON, as text."""
    written = text(max_nbytes)

    def layout(wire: Wire, value: Any, where: str) -> Any:
        found = written(wire, None if value is None else to_json(value), where)
        return from_json(found) if value is None else value

    return layout


def _are_numbers(values: Any, names: Any) -> bool:
    return set(values) <= set(names) and all(type(v) in (int, float) for v in values.values())
