"""Every family gives the logits of other programs, from the folders of hubs and from GGUF files,
and so does a model that is described by a spec of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import _core, formats
from pyflow.errors import UnsupportedError
from pyflow.specs import build_spec

from . import tiny

FIXTURES = Path(__file__).parents[2] / "golden/families"
TABLE = Path(__file__).parents[3] / "docs/families.md"
SPECS = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))
REFUSED = {"hf_falcon_rw": "alibi"}
TOLERANCE = 2e-3
"""Of the largest logit: keys and values are kept in F16 here."""
POOL = _core.ThreadPool(1, False)


def fixture(name: str) -> tiny.Fixture:
    read: tiny.Fixture = json.loads((FIXTURES / f"{name}.json").read_text())
    return read


def logits(checkpoint: Any, tokens: list[int], n_ctx: int, regime: Any) -> tiny.Logits:
    """After each of the tokens: prefill runs them in one step, decode one by one."""
    stage = _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), POOL)
    context = _core.Context(stage, n_ctx=n_ctx, n_seq_max=1, n_batch=64, cache_type="f16")
    step = len(tokens) if regime == "prefill" else 1
    parts = []
    for first in range(0, len(tokens), step):
        ids = np.array(tokens[first : first + step], np.int32)
        at = np.arange(first, first + len(ids), dtype=np.int32)
        rows = np.arange(len(ids), dtype=np.int32)
        parts.append(context.forward(ids, at, 0, rows, regime))
    return np.concatenate(parts)


@pytest.mark.parametrize("regime", ["prefill", "decode"])
@pytest.mark.parametrize("name", sorted({*NAMES} - {*REFUSED}))
def test_logits_are_those_of_the_other_program(name: str, regime: str, tmp_path: Path) -> None:
    golden = fixture(name)
    checkpoint = formats.open(tiny.write(tmp_path, golden))
    if name.startswith("own_"):
        shutil.copy(SPECS / f"{name.removeprefix('own_')}.toml", tmp_path / "pyflow.toml")
    got = logits(checkpoint, golden["tokens"], golden.get("n_ctx", 64), regime)[golden["rows"]]
    want = np.array(golden["logits"])
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


@pytest.mark.parametrize("name", sorted(n for n in {*NAMES} - {*REFUSED} if n.startswith("hf_")))
def test_configs_of_today_say_the_same(name: str, tmp_path: Path) -> None:
    golden = fixture(name)
    spec = build_spec(formats.open(tiny.write(tmp_path, golden)))
    (tmp_path / "config.json").write_text(json.dumps(golden["saved"]))
    assert build_spec(formats.open(tmp_path)) == spec


def test_the_table_of_families_has_all_of_them() -> None:
    rows = [line.split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    listed = {model for row in rows[1:] for model in row[1].split(", ")}
    assert listed == {name.partition("_")[2] for name in {*NAMES} - {*REFUSED}}


RENAMED: list[tuple[str, str, str, dict[str, list[int]]]] = [
    ("hf_llama2", "model.", "", {"layers.0.self_attn.rotary_emb.inv_freq": [8]}),
    ("hf_gpt2", "transformer.", "", {"h.0.attn.bias": [1, 1, 48, 48], "h.1.attn.masked_bias": [1]}),
    ("hf_bloom", "transformer.", "", {}),
    ("hf_falcon7b", "transformer.", "", {}),
    ("hf_gpt_neox", "gpt_neox.", "", {"layers.0.attention.rotary_emb.inv_freq": [2]}),
    ("hf_gemma3", "model.", "language_model.model.", {"vision_tower.x.weight": [3, 4]}),
    ("hf_gemma3", "model.", "model.language_model.", {"vision_tower.x.weight": [3, 4]}),
]


@pytest.mark.parametrize(("name", "prefix", "other", "more"), RENAMED)
def test_older_names_and_larger_models_hold_the_same(
    name: str, prefix: str, other: str, more: dict[str, list[int]], tmp_path: Path
) -> None:
    golden = fixture(name)
    kept = golden | {"tensors": golden["tensors"] | more}
    if name == "hf_gemma3":  # the model of texts is a part of one of texts and images
        kept["config"] = {"model_type": "gemma3", "text_config": golden["config"]}
    tiny.write_folder(
        tmp_path, kept, lambda n: other + n.removeprefix(prefix) if n.startswith(prefix) else n
    )
    got = logits(formats.open(tmp_path), golden["tokens"], 48, "prefill")[golden["rows"]]
    want = np.array(golden["logits"])
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def test_the_first_falcons_say_the_same_in_other_words(tmp_path: Path) -> None:
    golden = fixture("hf_falcon40b")
    spec = build_spec(formats.open(tiny.write(tmp_path, golden)))
    old = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    config = {old.get(key, key): value for key, value in golden["config"].items()}
    config |= {"model_type": "RefinedWeb", "n_head_kv": config.pop("num_kv_heads")}
    del config["new_decoder_architecture"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert build_spec(formats.open(tmp_path)) == spec


@pytest.mark.parametrize("name", REFUSED)
def test_variants_that_are_not_known_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[name]):
        build_spec(formats.open(tiny.write(tmp_path, fixture(name))))
