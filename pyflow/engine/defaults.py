"""Sampling defaults of a model's authors, from generation_config.json or its spec."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec

from pyflow.errors import FormatError, GenerationWarning, PyflowError, SpecError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import is_there, read_json
from pyflow.sampling import SamplingParams
from pyflow.text import printable

_MAX_NBYTES = 1 << 20
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
}
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
    search: Mapping[str, Any] = field(default_factory=dict)
    """Of Beams, by their names there, where the model reads a source."""

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(**self.values)


# The types of the keys that are read, as JSON has them.
_TYPES: Mapping[str, Any] = {
    "do_sample": bool,
    "max_new_tokens": Annotated[int, msgspec.Meta(ge=1)],
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "typical_p": float,
    "repetition_penalty": float,
}


# Of searches, for models that read a source.
_SEARCH: Mapping[str, tuple[str, Any]] = {
    "num_beams": ("n", Annotated[int, msgspec.Meta(ge=1, le=64)]),
    "length_penalty": ("length_penalty", Annotated[float, msgspec.Meta(ge=-4, le=4)]),
    "early_stopping": ("early_stopping", bool | Literal["never"]),
    "no_repeat_ngram_size": ("no_repeat_ngram", Annotated[int, msgspec.Meta(ge=0)]),
    "min_new_tokens": ("min_tokens", Annotated[int, msgspec.Meta(ge=0)]),
    "forced_bos_token_id": ("forced_first", Annotated[int, msgspec.Meta(ge=0)]),
    "forced_eos_token_id": ("forced_last", Annotated[int, msgspec.Meta(ge=0)]),
}


def read_search(checkpoint: Checkpoint, n_vocab: int) -> dict[str, Any]:
    """How a model's authors search: defaults of Beams, by generation_config.json, or without one by
    config.json. A value that cannot be used is a GenerationWarning, and left out."""
    paths = [checkpoint.path.parent / name for name in ("generation_config.json", "config.json")]
    path = next((path for path in paths if is_there(path)), None)
    if checkpoint.format == "GGUF" or path is None:
        return {}
    keys = read_json(path, dict[str, Any], max_nbytes=_MAX_NBYTES)
    found: dict[str, Any] = {}
    left = []
    for theirs, (ours, kind) in _SEARCH.items():
        value = keys.get(theirs)
        if value is None:
            continue
        try:
            taken = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            left.append(f"{theirs}: {error}, found {value!r:.40}")
            continue
        if ours.startswith("forced") and taken >= n_vocab:
            left.append(f"{theirs}: expected a token below {n_vocab}, found {taken}")
        else:
            found[ours] = taken
    banned = [one[0] for one in keys.get("bad_words_ids") or [] if _is_token(one, n_vocab)]
    if banned:
        found["banned"] = tuple(banned)
    if len(banned) != len(keys.get("bad_words_ids") or []):
        left.append("bad_words_ids: expected single tokens, found others")
    if left:
        message = printable("; ".join(left))
        warnings.warn(f"{path}: left out: {message:.400}", GenerationWarning, stacklevel=2)
    return found


def _is_token(one: object, n_vocab: int) -> bool:
    return isinstance(one, list) and len(one) == 1 and type(one[0]) is int and 0 <= one[0] < n_vocab


def read_defaults(
    checkpoint: Checkpoint,
    *,
    n_ctx: int,
    n_vocab: int,
    spec: tuple[str, Mapping[str, Any]] = ("", {}),
    reads_sources: bool = False,
) -> Defaults:
    """A spec's defaults, then those of the generation_config.json beside a checkpoint, key by key,
    then pyflow's own. A GGUF file has no generation_config.json.

    spec: where it stands, and values of SamplingParams and n_predict. n_ctx: a max_length of so
    many tokens or more limits nothing. n_vocab: token ids are below. What the file says and cannot
    be used is a GenerationWarning, and left out. SpecError for a value of the spec out of range.
    """
    known = (*_SEARCH, "bad_words_ids") if reads_sources else ()
    defaults = _of_config(checkpoint, n_ctx, n_vocab, known)
    where, said = spec
    values = {key: value for key, value in said.items() if key != "n_predict"}
    try:
        _ = SamplingParams(**values)
    except PyflowError as error:
        raise SpecError(f"{where}.{error}") from None
    n_predict = said.get("n_predict", defaults.n_predict)
    search = read_search(checkpoint, n_vocab) if reads_sources else {}
    values = {**defaults.values, **values}
    return replace(defaults, values=values, n_predict=n_predict, search=search)


def _of_config(
    checkpoint: Checkpoint, n_ctx: int, n_vocab: int, known: Collection[str]
) -> Defaults:
    path = checkpoint.path.parent / "generation_config.json"
    if checkpoint.format == "GGUF" or not is_there(path):
        return Defaults()
    left: list[str] = []
    try:
        keys = read_json(path, dict[str, Any], max_nbytes=_MAX_NBYTES)
    except FormatError as error:
        warnings.warn(f"{error}; left out", GenerationWarning, stacklevel=2)
        return Defaults()
    said = {key: _taken(key, keys[key], left) for key in _TYPES if keys.get(key) is not None}
    values: dict[str, Any] = {}
    for theirs, ours in _SAMPLING.items():
        if (value := said.get(theirs)) is not None:
            if (theirs, value) == ("top_p", 0):
                continue
            try:
                _ = SamplingParams(**{ours: value})
                values[ours] = value
            except PyflowError as error:
                left.append(str(error).replace(ours, theirs))
    if values.get("repeat_penalty", 1) != 1:
        values["repeat_last_n"] = -1  # it is for all tokens before
    if said.get("do_sample") is False or said.get("top_p") == 0:
        values["temperature"] = 0.0
    stop_ids = _ids(keys.get("eos_token_id"), n_vocab, left)
    if unknown := [k for k, value in keys.items() if k not in known and _changes(k, value, n_ctx)]:
        left.append(f"not supported: {', '.join(unknown)}")
    if left:
        message = printable("; ".join(left))
        warnings.warn(f"{path}: left out: {message:.400}", GenerationWarning, stacklevel=2)
    return Defaults(values, said.get("max_new_tokens") or -1, stop_ids)


def _taken(key: str, value: object, left: list[str]) -> Any:
    """A key's value, or None if it cannot be used; `left` then gets the reason."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    if key == "top_k" and value == -1:
        return 0  # off, as in vLLM
    if key == "top_p" and value == 0:
        return 0  # OpenAI's clients ask for the likeliest token so; see the caller
    try:
        return msgspec.convert(value, _TYPES[key])
    except msgspec.ValidationError as error:
        reason = str(error)
        left.append(f"{key}: {reason[:1].lower()}{reason[1:]}, found {value!r:.40}")
        return None


def _ids(value: object, n_vocab: int, left: list[str]) -> frozenset[int]:
    """The token ids of a key that has one or a list."""
    given = value if isinstance(value, list) else [] if value is None else [value]
    ids = frozenset(i for i in given if type(i) is int and 0 <= i < n_vocab)
    if wrong := [i for i in given if type(i) is not int or i not in ids]:
        left.append(f"eos_token_id: expected ids from 0 to {n_vocab - 1}, found {wrong!r:.60}")
    return ids


def _changes(key: str, value: object, n_ctx: int) -> bool:
    """Whether a key that is not read would change what is drawn."""
    if key in (*_TYPES, "eos_token_id") or key in _HARMLESS.split() or key.startswith("_"):
        return False
    if value is None or value is False or value in ([], {}, ""):
        return False
    if key == "max_length" and isinstance(value, int) and value >= n_ctx:
        return False
    return _NEUTRAL.get(key) != value
