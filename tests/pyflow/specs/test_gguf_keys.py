"""Every key of GGUF's metadata is read, refused at other values, or known to have no effect."""

from __future__ import annotations

import json
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import _core, formats
from pyflow.errors import FormatError, UnsupportedError
from pyflow.specs import build_spec
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.document import Document, family_names, load
from pyflow.specs.language.unread import Unread
from pyflow.specs.model_spec import ModelSpec

from . import encoders, tiny

GOLDEN = Path(__file__).parents[2] / "golden"
KEYS: list[str] = json.loads((GOLDEN / "gguf_keys.json").read_text())["keys"]
FAMILIES = family_names("gguf")
OTHER = 3.25
"""Of every key another value than those that run."""


def fixture_of(architecture: str) -> tiny.Fixture:
    if architecture in encoders.GGUF:
        return encoders.gguf(architecture)[0]
    for path in sorted((GOLDEN / "families").glob("gguf_*.json")):
        fixture: tiny.Fixture = json.loads(path.read_text())
        if fixture["metadata"]["general.architecture"] == architecture:
            return fixture
    raise AssertionError(architecture)


def built(folder: Path, fixture: tiny.Fixture, **keys: Any) -> ModelSpec:
    """The spec of a model with further metadata, by keys without its architecture."""
    start = fixture["metadata"]["general.architecture"]
    more = {f"{start}.{key}": value for key, value in keys.items()}
    fixture = fixture | {"metadata": fixture["metadata"] | more}
    return build_spec(formats.open(tiny.write_gguf(folder / "model.gguf", fixture)))


def unread(document: Document) -> dict[str, Unread]:
    """What the spec says of each key that it does not read."""
    said: dict[str, Unread] = document["unread"]
    return {
        key: said.get(key) or next(one for name, one in said.items() if fnmatchcase(key, name))
        for key in KEYS
        if not any(key == read or key.startswith(f"{read}.") for read in document.reads)
    }


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_key_of_llama_cpp_is_read_refused_or_without_effect(
    architecture: str, tmp_path: Path
) -> None:
    document = load(FAMILIES[architecture], "gguf")
    fixture, keys = fixture_of(architecture), unread(document)
    literals = {
        key: value
        for key, one in keys.items()
        if one.only is not None
        for value in [v for given in one.only for v in given.literals][:1]
    }
    assert built(tmp_path, fixture, **literals) == built(tmp_path, fixture)
    base = unread(load(FAMILIES["llama"], "gguf"))
    for key, one in keys.items():
        same = base.get(key)
        if one.only is None or (architecture != "llama" and same and same.only == one.only):
            continue
        with pytest.raises(UnsupportedError) as found:
            built(tmp_path, fixture, **{key: OTHER})
        assert f"{architecture}.{key}" in str(found.value)
        assert str(OTHER) in str(found.value)


def test_keys_that_no_program_knows_change_nothing(tmp_path: Path) -> None:
    fixture = fixture_of("llama")
    assert built(tmp_path, fixture, note="a draft", **{"of.mine": 4}) == built(tmp_path, fixture)


@pytest.mark.parametrize(
    "key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
)
def test_arrays_of_equal_values_say_what_a_number_says(key: str, tmp_path: Path) -> None:
    fixture = fixture_of("llama")
    value = fixture["metadata"][f"llama.{key}"]
    assert built(tmp_path, fixture, **{key: [value, value]}) == built(tmp_path, fixture)
    for wrong in ([value], [value] * 3):
        with pytest.raises(FormatError, match=key):
            built(tmp_path, fixture, **{key: wrong})
    with pytest.raises(FormatError, match="context_length"):
        built(tmp_path, fixture, context_length=[64, 64])


def logits(path: Path) -> tiny.Logits:
    checkpoint = formats.open(path)
    pool = _core.ThreadPool(1, False)
    stage = _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), pool)
    context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
    positions = np.arange(40, dtype=np.int32)
    found: tiny.Logits = context.forward(positions + 7, positions, 0, positions, "prefill")
    return found


def test_layers_may_have_other_numbers_of_heads_and_units(tmp_path: Path) -> None:
    """A layer with fewer is one whose further heads and units add nothing."""
    fixture = deepcopy(fixture_of("llama"))
    whole = tiny.weights(fixture)
    fewer = dict(whole)
    rows = {"attn_q": 32, "attn_k": 32, "attn_v": 32, "ffn_gate": 64, "ffn_up": 64}
    for name, n in rows.items():
        full = f"blk.1.{name}.weight"
        fewer[full] = whole[full][:n]
    for name, n in {"attn_output": 32, "ffn_down": 64}.items():
        full = f"blk.1.{name}.weight"
        fewer[full] = whole[full][:, :n]
        whole[full] = whole[full] * (np.arange(whole[full].shape[1]) < n)
    expected = logits(tiny.write_gguf(tmp_path / "whole.gguf", fixture, whole))
    fixture["metadata"] |= {
        "llama.attention.head_count": [4, 2],
        "llama.attention.head_count_kv": [4, 2],
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.feed_forward_length": [96, 64],
    }
    found = logits(tiny.write_gguf(tmp_path / "fewer.gguf", fixture, fewer))
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("law", "runs", "refused"), [("yarn", (-1.0, 1.0), 0.0), ("linear", (-1.0, 0.0), 1.0)]
)
def test_the_share_of_yarn_runs_at_the_value_that_its_law_has(
    law: str, runs: tuple[float, ...], refused: float, tmp_path: Path
) -> None:
    fixture = fixture_of("llama")
    scaling = {"rope.scaling.type": law, "rope.scaling.factor": 4.0}
    plain = built(tmp_path, fixture, **scaling)
    share = "rope.scaling.yarn_ext_factor"
    for value in runs:
        assert built(tmp_path, fixture, **scaling, **{share: value}) == plain
    with pytest.raises(UnsupportedError, match="yarn_ext_factor"):
        built(tmp_path, fixture, **scaling, **{share: refused})


def test_gemma3_without_a_window_has_one_rope(tmp_path: Path) -> None:
    fixture = fixture_of("gemma3")
    for key, layers in (({}, 2), ({"attention.sliding_window": 0}, 1)):
        spec = built(tmp_path, fixture, **key)
        blocks = [block for layer in spec.layers for block in layer]
        attentions = [block for block in blocks if isinstance(block, Attention)]
        assert len({(one.window, one.rope) for one in attentions}) == layers


@pytest.mark.parametrize("length", ["short", "long"])
def test_divisors_for_one_length_of_context_need_those_for_the_other(
    length: str, tmp_path: Path
) -> None:
    fixture = fixture_of("phi3")
    for name in ("rope_factors_short.weight", "rope_factors_long.weight"):
        fixture["tensors"].pop(name, None)
    fixture["tensors"][f"rope_factors_{length}.weight"] = [4]
    with pytest.raises(FormatError) as caught:
        built(tmp_path, fixture)
    assert "rope_factors_short.weight" in str(caught.value)
    assert "rope_factors_long.weight" in str(caught.value)


def test_experts_without_their_number_name_the_key(tmp_path: Path) -> None:
    fixture = json.loads((GOLDEN / "families/gguf_mixtral.json").read_text())
    del fixture["metadata"]["llama.expert_used_count"]
    with pytest.raises(FormatError, match=r"llama\.expert_used_count.*nothing"):
        built(tmp_path, fixture)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.layer_norm_rms_epsilon", -1e-5),
        ("attention.layer_norm_rms_epsilon", 2.0),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", 1e30),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=key):
        built(tmp_path, fixture_of("llama"), **{key: value})
