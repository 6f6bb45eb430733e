"""Whatever a config.json, a pyflow.toml or a generation_config.json holds, the model is described,
or the file refused as what it is."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyflow.formats import Checkpoint
from pyflow.formats.overrides import NO_OVERRIDES

from pyflow import formats
from pyflow.engine.defaults import read_defaults
from pyflow.errors import GenerationWarning, ShapeError
from pyflow.specs import describe

from ..damage import as_read, damaged, edited, edited_json, read_or_refused
from . import tiny

GOLDEN = Path(__file__).parents[2] / "golden/families"
SPECS = [path.read_bytes() for path in sorted((Path(__file__).parent / "data").glob("*.toml"))]
# Between them they have every kind of block, rope and scaling law.
FAMILIES = ["llama_yarn", "qwen2moe", "gemma3", "phi3_longrope", "falcon40b"]
SMALL = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORDS = st.sampled_from(
    [
        *(
            "$hidden_size",
            "$\x1b[2J",
            "=n_embd",
            "=n_ctx",
            "=2 ** 62 * 2",
            "=1 // 0",
            "=has('x')",
            "=i",
        ),
        *("auto", "none", "norm", "attention", "q + k", "{i}.weight", "{i", "{2 ** 40}", "=x[0]"),
    ]
)


def fixture(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return read


def described(opened: Callable[[], Checkpoint]) -> None:
    with read_or_refused():
        try:
            found = describe(opened())
            _ = found.spec, found.stop_ids, found.template, found.generation
        except ShapeError:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@SMALL
@given(data=st.data())
def test_config_json(name: str, data: st.DataObject, tmp_path: Path) -> None:
    golden = fixture(f"hf_{name}")
    if not (tmp_path / "model.safetensors").exists():
        tiny.write(tmp_path, golden)
    raw = data.draw(edited_json(golden["config"]))
    (tmp_path / "config.json").write_bytes(raw)
    described(lambda: formats.open(tmp_path))


@pytest.mark.parametrize("name", ["llama3", "gemma2", "phi3_longrope"])
@SMALL
@given(data=st.data())
def test_metadata_of_gguf_files(name: str, data: st.DataObject, tmp_path: Path) -> None:
    golden = fixture(f"gguf_{name}")
    if not (tmp_path / "model.gguf").exists():
        tiny.write(tmp_path, golden)
    sound = formats.open(tmp_path / "model.gguf")
    tree = data.draw(edited(golden["metadata"]))
    changed: Any = SimpleNamespace(
        overrides=NO_OVERRIDES,
        path=sound.path,
        format=sound.format,
        tensors=sound.tensors,
        array=sound.array,
        metadata={key: as_read(value) for key, value in tree.items()},
    )
    described(lambda: changed)


@SMALL
@given(raw=damaged(*SPECS))
def test_bytes_of_specs(raw: bytes, tmp_path: Path) -> None:
    if not (tmp_path / "model.safetensors").exists():
        tiny.write(tmp_path, fixture("own_invented"))
    (tmp_path / "pyflow.toml").write_bytes(raw)
    described(lambda: formats.open(tmp_path))


# Without null, which TOML has not.
PARTS = st.booleans() | WORDS | st.sampled_from([0, -1, 2.5, 1 << 62, float("inf"), "\x1b[2J", "é"])
ANY = st.recursive(
    PARTS, lambda x: st.lists(x, max_size=3) | st.dictionaries(WORDS, x, max_size=2), max_leaves=4
)


def toml(value: Any, top: bool = True) -> str:
    """A document of one line for each of its keys."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)} = {toml(inner, False)}" for key, inner in value.items()]
        return "\n".join(pairs) if top else f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(toml(inner, False) for inner in value)}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


@SMALL
@given(tree=edited(tomllib.loads(SPECS[0].decode()) | {"generation": {"top_k": 5}}, ANY))
def test_values_of_specs(tree: dict[str, Any], tmp_path: Path) -> None:
    if not (tmp_path / "model.safetensors").exists():
        tiny.write(tmp_path, fixture("own_invented"))
    (tmp_path / "pyflow.toml").write_text(toml(tree) if isinstance(tree, dict) else "")
    described(lambda: formats.open(tmp_path))


SETTINGS = {
    "do_sample": False,
    "eos_token_id": [3, 257],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.05,
    "max_new_tokens": 6,
    "max_length": 512,
    "num_beams": 4,
    "bad_words_ids": [[1]],
}


@SMALL
@given(raw=edited_json(SETTINGS))
def test_generation_config(raw: bytes, tmp_path: Path) -> None:
    if not (tmp_path / "model.safetensors").exists():
        tiny.write(tmp_path, fixture("hf_llama2"))
    (tmp_path / "generation_config.json").write_bytes(raw)
    checkpoint = formats.open(tmp_path)
    with read_or_refused(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", GenerationWarning)
        _ = read_defaults(checkpoint, n_ctx=64, n_vocab=96).sampling.seeded()
    assert all(str(one.message).isprintable() for one in told)
