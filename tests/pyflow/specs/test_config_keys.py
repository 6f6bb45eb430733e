"""Every key of a configuration is read, refused at other values, or known to have no effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from pyflow import formats
from pyflow.errors import PyflowError, SpecError, UnsupportedError
from pyflow.specs import build_spec
from pyflow.specs.bind.describe import describe
from pyflow.specs.document import FAMILIES as FOLDER
from pyflow.specs.document import Document, family_names, load, read_file
from pyflow.specs.language.unread import Unread

from ...golden import make_config_keys
from . import tiny

GOLDEN = Path(__file__).parents[2] / "golden"
KEYS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "config_keys.json").read_text())["keys"]
FAMILIES = family_names("hf")
FIXTURES = {
    model_type: next(
        path
        for folder in ("families/hf_", "text_encoders/", "encoder_decoders/")
        for path in sorted(GOLDEN.glob(f"{folder}*"))
        if path.suffix == ".json"
        and f'"model_type":"{model_type}"' in path.read_text().replace(": ", ":")
        and "falcon_rw" not in path.name
    )
    for model_type in KEYS
}
# Read apart from a family's spec.
ELSEWHERE = {"eos_token_id", "rope_parameters"}


def spec_of(model_type: str) -> Document:
    return load(FAMILIES[model_type], "hf")


def is_read(key: str, reads: frozenset[str]) -> bool:
    return any(key == one or one.startswith(f"{key}.") for one in reads)


@pytest.mark.parametrize("model_type", KEYS)
def test_every_key_of_the_class_is_read_refused_or_without_effect(model_type: str) -> None:
    document = spec_of(model_type)
    unread: dict[str, Unread] = document["unread"]
    left = [
        key
        for key in KEYS[model_type]
        if not is_read(key, document.reads) and key not in unread and key not in ELSEWHERE
    ]
    assert not left
    without_file = {"RefinedWeb", "RefinedWebModel", "marian-student"}
    assert FAMILIES.keys() - without_file == KEYS.keys()


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    """A tiny model of a family, and its configuration."""

    def make(model_type: str) -> tuple[Path, dict[str, Any]]:
        golden = json.loads(FIXTURES[model_type].read_text())
        tiny.write(tmp_path, golden)
        return tmp_path, golden["config"]

    return make


def built(folder: Path, config: dict[str, Any]) -> object:
    """A model's facts and ropes, whether or not its tensors fit; or the class of the error."""
    (folder / "config.json").write_text(json.dumps(config))
    try:
        found = describe(formats.open(folder))
    except PyflowError as error:
        return type(error)
    return {name: fact.value for name, fact in found.facts.known().items()}, found.built.ropes


@pytest.mark.parametrize("model_type", KEYS)
def test_a_key_that_is_absent_has_the_default_of_its_class(
    model_type: str, folder_of: Callable[[str], tuple[Path, dict[str, Any]]]
) -> None:
    folder, config = folder_of(model_type)
    reads = spec_of(model_type).reads
    for key, default in KEYS[model_type].items():
        if default is None or key == "vocab_size" or not is_read(key, reads):
            continue  # the embedding has as many rows
        without = {name: value for name, value in config.items() if name != key}
        absent = built(folder, without)
        if not isinstance(absent, type):  # a size without which the model is refused
            assert absent == built(folder, without | {key: default}), key


@pytest.mark.parametrize("model_type", KEYS)
def test_other_values_of_keys_that_change_the_model_are_refused_by_name(
    model_type: str, folder_of: Callable[[str], tuple[Path, dict[str, Any]]]
) -> None:
    folder, config = folder_of(model_type)
    plain = build_spec(formats.open(folder))
    document, in_all = spec_of(model_type), read_file(FOLDER / "common.toml")["hf"]["unread"]
    others = cycle((7.25, "other", ["other"], {"other": 1}))
    for key, one in document["unread"].items():
        if is_read(key, document.reads) or key in ("quantization_config", "text_config"):
            continue
        if model_type != "llama" and one == in_all.get(key):
            continue
        is_computed = any(list(given.names) for given in one.only or ())
        flags = () if is_computed else (True, False)
        for value in (*flags, next(others)):  # each kind at every fourth key
            (folder / "config.json").write_text(json.dumps(config | {key: value}))
            only = [json.dumps(v) for given in one.only or () for v in given.literals]
            if one.only is None or json.dumps(value) in only:
                assert build_spec(formats.open(folder)) == plain
                continue
            with pytest.raises(UnsupportedError) as found:
                build_spec(formats.open(folder))
            assert key in str(found.value)
            assert json.dumps(value) in str(found.value)


@pytest.mark.parametrize("model_type", KEYS)
def test_keys_of_other_families_run_at_values_without_effect(
    model_type: str, folder_of: Callable[[str], tuple[Path, dict[str, Any]]]
) -> None:
    folder, config = folder_of(model_type)
    document = spec_of(model_type)
    first = {
        key: next((v for given in one.only for v in given.literals), None)
        for key, one in document["unread"].items()
        if one.only is not None and not is_read(key, document.reads)
    }
    notes = {"_note": "a draft", "made_with": {"a": [1]}}
    assert built(folder, first | notes | config) == built(folder, config)
    causal = "encoder" not in document.tables
    assert built(folder, config | dict.fromkeys(first) | {"is_causal": causal}) == built(
        folder, config
    )
    assert built(folder, config | {"is_causal": None if causal else True}) is UnsupportedError


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("[hf.unread]\nkey = 4", ("unread.key", "4", "only", "why")),
        ("[hf.unread]\nkey = { only = 4 }", ("unread.key", "only", "why")),
        ('[hf.unread]\nkey = { only = 4, why = "x", null = 4 }', ("unread.key", "null")),
        ('[hf.unread]\nkey = { only = "=1 +", why = "x" }', ("unread.key.only", "1 +")),
        ('[hf.unread]\nkey = { only = "=no_fact", why = "x" }', ("unread", "no_fact")),
        ('[hf.defaults]\nkey = "$other"', ("defaults.key", "$other")),
    ],
)
def test_specs_that_say_it_wrongly_are_refused(
    text: str,
    mentions: tuple[str, ...],
    folder_of: Callable[[str], tuple[Path, dict[str, Any]]],
) -> None:
    folder, _ = folder_of("llama")
    (folder / "pyflow.toml").write_text(f'spec = 1\nname = "own"\nextends = "llama"\n{text}')
    with pytest.raises(SpecError) as found:
        build_spec(formats.open(folder))
    assert all(word in str(found.value) for word in mentions), found.value


def test_the_keys_are_those_of_transformers(oracle: Callable[[str], Any]) -> None:
    oracle("torch")
    oracle("transformers")
    assert (
        make_config_keys.text(make_config_keys.made()) == (GOLDEN / "config_keys.json").read_text()
    )
