"""Sampling defaults of a model's authors, from generation_config.json or its spec."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from pyflow.errors import FormatError, GenerationWarning, PyflowError, SpecError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import read_json
from pyflow.sampling import SamplingParams
from pyflow.text import printable

_MAX_NBYTES = 1 << 20
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}
_READ = (*_SAMPLING, "eos_token_id", "do_sample", "max_new_tokens")
# Nothing that is drawn depends on these: names, and what only beams, caches or compilers read.
_HARMLESS = """
    bos_token_id pad_token_id decoder_start_token_id transformers_version early_stopping
    length_penalty use_cache cache_implementation cache_config return_legacy_cache
    compile_config disable_compile output_attentions output_hidden_states output_scores
    output_logits return_dict_in_generate remove_invalid_values max_time trust_remote_code
    num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
    assistant_early_exit prompt_lookup_num_tokens max_matching_ngram_size is_assistant
    """
# The values with which a key changes nothing, besides null, false and empty lists.
_NEUTRAL = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "typical_p": 1,
    "diversity_penalty": 0,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_h": 1,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for options that a caller leaves open."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Of SamplingParams, by their names there."""
    n_predict: int = -1
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a generation besides those that the tokenizer knows."""

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(**self.values)


class _Config(msgspec.Struct):
    eos_token_id: int | list[int] | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read_defaults(
    checkpoint: Checkpoint,
    *,
    n_ctx: int,
    n_vocab: int,
    spec: tuple[str, Mapping[str, Any]] = ("", {}),
) -> Defaults:
    """A spec's defaults, then those of the generation_config.json beside a checkpoint, key by key,
    then pyflow's own. A GGUF file has no generation_config.json.

    spec: where it stands, and values of SamplingParams and n_predict. n_ctx: a max_length of so
    many tokens or more limits nothing. n_vocab: token ids are below. Keys that would change what is
    drawn but are not supported are a GenerationWarning. FormatError for a broken file, SpecError
    for a value out of range.
    """
    defaults = _of_config(checkpoint, n_ctx, n_vocab)
    where, said = spec
    values = {key: value for key, value in said.items() if key != "n_predict"}
    try:
        _ = SamplingParams(**values)
    except PyflowError as error:
        raise SpecError(f"{where}.{error}") from None
    n_predict = said.get("n_predict", defaults.n_predict)
    return replace(defaults, values={**defaults.values, **values}, n_predict=n_predict)


def _of_config(checkpoint: Checkpoint, n_ctx: int, n_vocab: int) -> Defaults:
    path = checkpoint.path.parent / "generation_config.json"
    if checkpoint.format == "GGUF" or not path.exists():
        return Defaults()
    source = str(path)
    keys = read_json(path, dict[str, Any], max_nbytes=_MAX_NBYTES)
    try:
        config = msgspec.convert({key: keys[key] for key in _READ if key in keys}, _Config)
    except msgspec.ValidationError as error:
        message = str(error)
        raise FormatError(f"{source}: {message[:1].lower()}{message[1:]}") from None
    values = {
        ours: value
        for theirs, ours in _SAMPLING.items()
        if (value := getattr(config, theirs)) is not None
    }
    if values.get("repeat_penalty", 1) != 1:
        values["repeat_last_n"] = -1  # it is for all tokens before
    if config.do_sample is False:
        values["temperature"] = 0.0
    n_predict = -1 if config.max_new_tokens is None else config.max_new_tokens
    if n_predict < 1 and config.max_new_tokens is not None:
        raise FormatError(f"{source}: max_new_tokens: expected 1 or more, found {n_predict}")
    eos = config.eos_token_id
    stop_ids = [] if eos is None else [eos] if isinstance(eos, int) else eos
    for token in stop_ids:
        if not 0 <= token < n_vocab:
            raise FormatError(
                f"{source}: eos_token_id: expected a token id, 0 to {n_vocab - 1}, found "
                f"{token!r:.60}"
            )
    defaults = Defaults(values, n_predict, frozenset(stop_ids))
    try:
        _ = defaults.sampling
    except PyflowError as error:
        raise FormatError(f"{source}: {error}") from None
    if unknown := [key for key, value in keys.items() if _changes(key, value, n_ctx)]:
        names = printable(", ".join(unknown))
        warnings.warn(
            f"{source}: not supported and left out: {names:.300}", GenerationWarning, stacklevel=2
        )
    return defaults


def _changes(key: str, value: object, n_ctx: int) -> bool:
    """Whether a key that is not read would change what is drawn."""
    if key in _READ or key in _HARMLESS.split() or key.startswith("_"):
        return False
    if value is None or value is False or value in ([], {}, ""):
        return False
    if key == "max_length" and isinstance(value, int) and value >= n_ctx:
        return False
    return _NEUTRAL.get(key) != value
