"""Specs and configurations that are wrong, or mean harm, end in an error that says where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyflow import formats
from pyflow.errors import FormatError, SpecError, UnsupportedError
from pyflow.specs import build_spec
from pyflow.specs.document import families, family_names, load

from ...work import at_most
from . import tiny

GOLDEN = Path(__file__).parents[2] / "golden/families/hf_llama2.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a llama that is sound."""
    golden = json.loads(GOLDEN.read_text())
    tiny.write(tmp_path, golden)
    return tmp_path


def with_spec(folder: Path, text: str) -> Path:
    (folder / "pyflow.toml").write_text(text)
    return folder


def with_config(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value != "absent"})
    )
    return folder


def fault(folder: Path, error: type[Exception]) -> str:
    """The message of the error, which takes little work."""
    with at_most(3_000_000), pytest.raises(error) as found:
        build_spec(formats.open(folder))
    assert len(str(found.value)) < 1000
    return str(found.value)


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_every_family_keeps_the_grammar(kind: str) -> None:
    named = family_names(kind)
    assert {load(path, kind).name for path in named.values()} <= {p.stem for p in families()}
    assert {"llama", "qwen2", "falcon"} <= named.keys()


HEAD = 'spec = 1\nname = "own"\nextends = "llama"\n'

WRONG_SPECS = {
    "no version": ('name = "own"', ("spec:", "1", "None")),
    "version": ('spec = 2\nname = "own"', ("spec:", "1", "2")),
    "version of another type": ("spec = true", ("spec:", "True")),
    "no toml": ("spec = ", ("TOML",)),
    "unknown table": (HEAD + "[decodr]\nn_layers = 2", ("decodr", "decoder")),
    "unknown key": (
        HEAD + "[blocks.attention]\nn_head = 4",
        ("blocks.attention", "n_head", "n_heads"),
    ),
    "a key of another block": (HEAD + "[blocks.norm]\nwindow = 4", ("blocks.norm", "window")),
    "a text for a number": (
        HEAD + '[blocks.norm]\neps = "1e-5"',
        ("blocks.norm.eps", "number", "1e-5"),
    ),
    "a negative number": (HEAD + "[blocks.norm]\neps = -1.0", ("blocks.norm.eps", "-1.0", "0")),
    "a number that is not finite": (HEAD + "[blocks.norm]\neps = inf", ("blocks.norm.eps", "inf")),
    "a flag for a number": (
        HEAD + "[decoder]\nn_layers = true",
        ("decoder.n_layers", "True", "integer", "4096"),
    ),
    "too many layers": (
        HEAD + "[decoder]\nn_layers = 100000000",
        ("decoder.n_layers", "100000000", "4096"),
    ),
    "half a layer": (HEAD + "[decoder]\nn_layers = 1.5", ("decoder.n_layers", "1.5", "integer")),
    "a word that is none": (
        HEAD + '[blocks.norm]\ntype = "batch"',
        ("blocks.norm.type", "batch", "rms", "layer"),
    ),
    "activation": (
        HEAD + '[blocks.ffn]\nactivation = "sigmoid"',
        ("blocks.ffn.activation", "sigmoid", "silu", "gelu"),
    ),
    "an expression": (HEAD + '[decoder]\nn_layers = "=2 +"', ("decoder.n_layers", "2 +")),
    "an unknown fact": (
        HEAD + '[decoder]\nn_layers = "=n_layer"',
        ("decoder.n_layers", "n_layer", "n_layers"),
    ),
    "an empty list": (HEAD + "[decoder]\nn_layers = []", ("decoder.n_layers", "empty list")),
    "a list for a value": (HEAD + "[facts]\npattern = [0, 0, 1]", ("facts.pattern", "[[...]]")),
    "a date": (HEAD + "[facts]\nday = 2020-01-01", ("facts.day", "2020")),
    "a block that there is not": (
        HEAD + '[decoder]\nlayer = [{ name = "a", run = "atention" }]',
        ("decoder.layer[0].run", "atention", "attention"),
    ),
    "a norm that is none": (
        HEAD + '[decoder]\nlayer = [{ name = "a", norm = "ffn", run = "ffn" }]',
        ("decoder.layer[0].norm", "norm", "ffn"),
    ),
    "a norm that is run": (
        HEAD + '[decoder]\nlayer = [{ name = "a", run = "norm" }]',
        ("decoder.layer[0].run", "norm"),
    ),
    "a step with nothing to do": (
        HEAD + '[decoder]\nlayer = [{ name = "a" }]',
        ("decoder.layer[0]", "run", "parallel"),
    ),
    "a step without a name": (
        HEAD + '[decoder]\nlayer = [{ run = "ffn" }]',
        ("decoder.layer[0].name",),
    ),
    "an unknown key of a step": (
        HEAD + '[decoder]\nlayer = [{ name = "a", run = "ffn", nrom = "norm" }]',
        ("decoder.layer[0]", "nrom", "norm"),
    ),
    "steps of the same name": (
        HEAD + '[decoder]\nlayer = [{ name = "ffn", run = "ffn" }, { name = "ffn", run = "ffn" }]',
        ("decoder.layer[1]",),
    ),
    "three branches": (
        HEAD
        + '[decoder]\nlayer = [{ name = "x", parallel = [{ name = "a", run = "ffn" }, '
        + '{ name = "b", run = "ffn" }, { name = "c", run = "ffn" }] }]',
        ("decoder.layer[0].parallel", "3"),
    ),
    "too many steps": (
        HEAD
        + "[decoder]\nlayer = ["
        + ", ".join(f'{{ name = "s{i}", run = "ffn" }}' for i in range(20))
        + "]",
        ("decoder.layer[0]", "16"),
    ),
    "a rope that there is not": (HEAD + '[blocks.attention]\nrope = "mian"', ("mian", "main")),
    "an unknown role": (
        HEAD + '[tensors.decoder.attn]\nquery = "layers.{i}.q"',
        ("tensors.decoder.attn", "query"),
    ),
    "a role twice": (
        HEAD + '[tensors.decoder.attn]\n"q + q" = "x"',
        ("tensors.decoder.attn", "q + q"),
    ),
    "a number for a name": (
        HEAD + "[tensors.decoder.attn]\nq = 4",
        ("tensors.decoder.attn.q", "4"),
    ),
    "a brace that is not closed": (
        HEAD + '[tensors.decoder.attn]\nq = "a.{i"',
        ("tensors.decoder.attn.q", "a.{i"),
    ),
    "an unknown fact in a name": (
        HEAD + '[hf.tensors.decoder.attn]\nq = "a.{k}.q"',
        ("tensors.decoder.attn.q", "a.{k}.q", "k"),
    ),
    "experts where there are none": (
        HEAD + '[hf.tensors.decoder.attn]\nq = ["layers.{i+j}.self_attn.q_proj.weight"]',
        ("tensors.decoder.attn.q", "{i+j}"),
    ),
    "a circle of facts": (
        HEAD + '[hf.facts]\nn_embd = "=n_ff"\nn_ff = "=n_embd"',
        ("facts.", "n_embd -> n_ff -> n_embd"),
    ),
    "a fact of itself": (
        HEAD + '[hf.facts]\nn_embd = "=n_embd + 1"',
        ("facts.n_embd", "n_embd -> n_embd"),
    ),
    "extends nothing": ('spec = 1\nextends = "lama"', ("extends", "lama", "llama")),
    "extends itself": (
        'spec = 1\nextends = "pyflow.toml"',
        ("extends", "pyflow.toml -> pyflow.toml"),
    ),
    "extends a path": ('spec = 1\nextends = "../other.toml"', ("extends", "../other.toml")),
    "extends an absolute path": (
        'spec = 1\nextends = "/etc/passwd.toml"',
        ("extends", "/etc/passwd.toml"),
    ),
    "extends a family by a path": ('spec = 1\nextends = "../llama"', ("extends", "../llama")),
    "extends no text": ("spec = 1\nextends = 4", ("extends", "4")),
    "nothing in it": ("spec = 1", ("decoder", "encoder")),
    "a long name": (HEAD + f'[decoder]\nn_layers = "={"1+" * 300}1"', ("decoder.n_layers", "400")),
    "a deep value": (
        HEAD + "[facts]\nx = [" + "[" * 40 + "]" * 40 + "]",
        ("12",),
    ),
    "a deeper value": (HEAD + "[facts]\nx = " + "[" * 9000 + "]" * 9000, ()),
    "a long number": (HEAD + f"[decoder]\nn_layers = {'9' * 5000}", ("TOML",)),
    "a large file": (HEAD + "#" * (1 << 18), ("262,144",)),
    "a table for a number": (
        HEAD + "[decoder.n_layers]\nx = 1",
        ("decoder.n_layers", "integer", "4096"),
    ),
    "a number for a table": ("spec = 1\ndecoder = 4", ("decoder", "table", "4")),
    "a bad name of a fact": (HEAD + '[facts]\n"a b" = 1', ("facts", "a b")),
}


@pytest.mark.parametrize("name", WRONG_SPECS)
def test_wrong_specs_are_refused(name: str, folder: Path) -> None:
    text, mentions = WRONG_SPECS[name]
    said = fault(
        with_spec(folder, text), SpecError if name != "groups that do not fit" else Exception
    )
    assert all(word in said for word in mentions), said
    assert "pyflow.toml" in said or str(folder) in said


def test_long_chains_end(folder: Path) -> None:
    for i in range(20):
        (folder / f"s{i}.toml").write_text(f'spec = 1\nextends = "s{i + 1}.toml"')
    said = fault(with_spec(folder, 'spec = 1\nextends = "s0.toml"'), SpecError)
    assert "extends" in said
    assert "s0.toml -> s1.toml" in said
    (folder / "a.toml").write_text('spec = 1\nextends = "b.toml"')
    (folder / "b.toml").write_text('spec = 1\nextends = "a.toml"')
    assert "a.toml -> b.toml -> a.toml" in fault(
        with_spec(folder, 'spec = 1\nextends = "a.toml"'), SpecError
    )
    assert "s99.toml" in fault(with_spec(folder, 'spec = 1\nextends = "s99.toml"'), FormatError)


def test_facts_that_ask_for_one_another_end(folder: Path) -> None:
    lines = [f'f{i} = "=f{i + 1} + f{i + 1}"' for i in range(200)]
    text = "\n".join([HEAD, "[hf.facts]", *lines, "f200 = 1", 'n_layers = "=f0"'])
    assert "f22 -> f23" in fault(with_spec(folder, text), SpecError)


def test_many_names_are_not_all_compared(folder: Path) -> None:
    names = "\n".join(f"{'a' * 40}{i} = 1" for i in range(4000))
    text = f"{HEAD}\n[facts]\n{names}\n[decoder]\nn_layers = '={'a' * 40}x'"
    assert "'aaa" in fault(with_spec(folder, text), SpecError)


def test_names_that_would_move_the_cursor_are_spelt_out(folder: Path) -> None:
    text = HEAD + '[hf.tensors.decoder.ffn]\nup = "\\u001b[2J"'
    assert r"model.\x1b[2J" in fault(with_spec(folder, text), FormatError)


def test_patterns_take_no_time(folder: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    golden["tensors"]["a" * 1000] = [4, 4]
    tiny.write(folder, golden)
    text = f"{HEAD}\n[hf.tensors]\nignore = ['{'*a' * 400}*b']"
    assert "a" * 100 in fault(with_spec(folder, text), UnsupportedError)


WRONG_CONFIGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no layers": ({"num_hidden_layers": 0}, ("num_hidden_layers", "0", "4096")),
    "layers without end": (
        {"num_hidden_layers": 10**9},
        ("num_hidden_layers", "1000000000", "4096"),
    ),
    "more layers than tensors": ({"num_hidden_layers": 4096}, ("model.layers.2.",)),
    "negative": ({"hidden_size": -64}, ("hidden_size", "-64")),
    "a text": ({"hidden_size": "64"}, ("hidden_size", "'64'")),
    "a list": ({"hidden_size": [64]}, ("hidden_size", "[64]")),
    "a flag": ({"hidden_size": True}, ("hidden_size", "True")),
    "a fraction": ({"num_attention_heads": 3.5}, ("num_attention_heads", "3.5")),
    "huge": ({"vocab_size": 10**300}, ("vocab_size", "1000")),
    "missing": ({"hidden_size": "absent"}, ("hidden_size", "nothing")),
    "heads that do not divide": ({"num_key_value_heads": 3}, ("decoder.0.attn", "3", "4")),
    "heads of nothing": ({"num_attention_heads": 4096}, ("head_dim", "0")),
    "another size": ({"intermediate_size": 97}, ("97 x 64", "96 x 64")),
    "another vocabulary": ({"vocab_size": 95}, ("95 x 64", "96 x 64")),
    "eps": ({"rms_norm_eps": -1}, ("rms_norm_eps", "-1")),
    "no number": ({"rms_norm_eps": float("nan")}, ("rms_norm_eps", "nan")),
    "base": ({"rope_theta": 0}, ("rope_theta", "0")),
    "activation": ({"hidden_act": "mish"}, ("hidden_act", "mish", "silu")),
    "a family": ({"model_type": "lama"}, ("model_type", "lama", "llama")),
    "a family of another type": ({"model_type": 4}, ("model_type", "4")),
    "no family": ({"model_type": "absent"}, ("model_type", "nothing")),
    "a law": ({"rope_scaling": {"type": "fancy"}}, ("rope_scaling", "fancy")),
    "a law without its factor": ({"rope_scaling": {"type": "linear"}}, ("rope_scaling", "factor")),
    "a factor of nothing": (
        {"rope_scaling": {"type": "linear", "factor": 0}},
        ("rope_scaling", "factor", "0"),
    ),
    "an unknown parameter": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "facter": 1}},
        ("rope_scaling", "facter", "factor"),
    ),
    "scaling that is no table": ({"rope_scaling": 4}, ("rope_scaling", "4")),
    "yarn of no factor": ({"rope_scaling": {"rope_type": "yarn"}}, ("rope_scaling", "factor")),
    "a base beside the scaling": (
        {"rope_scaling": {"rope_type": "default", "rope_theta": -1.0}},
        ("rope_scaling.rope_theta", "-1.0"),
    ),
    "a flag that is null": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": None}},
        ("rope_scaling", "truncate", "true or false"),
    ),
    "a parameter of other programs": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 2.0}},
        ("rope_scaling: attn_factor", "2.0"),
    ),
    "a list of ropes": ({"rope_scaling": []}, ("rope_scaling", "object", "[]")),
    "a law of ropes without numbers": (
        {"rope_scaling": {"type": "su"}},
        ("rope_scaling", "short_factor", "8", "nothing"),
    ),
    "too few factors": (
        {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0],
                "long_factor": [1.0] * 8,
                "original_max_position_embeddings": 16,
            }
        },
        ("short_factor", "8"),
    ),
}


@pytest.mark.parametrize("name", WRONG_CONFIGS)
def test_wrong_configs_are_refused(name: str, folder: Path) -> None:
    changes, mentions = WRONG_CONFIGS[name]
    said = fault(with_config(folder, **changes), Exception)
    assert all(word in said for word in mentions), said
    assert str(folder) in said


@pytest.mark.parametrize(
    ("part", "mentions"), [(0.01, ("rope_dims", "2")), (0.2, ("rope", "even", "3"))]
)
def test_parts_of_heads_that_cannot_turn_are_refused(
    part: float, mentions: tuple[str, ...], tmp_path: Path
) -> None:
    tiny.write(tmp_path, json.loads(GOLDEN.with_name("hf_stablelm.json").read_text()))
    said = fault(with_config(tmp_path, partial_rotary_factor=part), Exception)
    assert all(word in said for word in mentions), said


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_base_beside_the_scaling_counts(key: str, folder: Path) -> None:
    def ropes(**changes: Any) -> Any:
        return build_spec(formats.open(with_config(folder, **changes))).ropes

    inner = ropes(**{key: {"rope_type": "default", "rope_theta": 5e5}})
    assert inner == ropes(**{key: "absent", "rope_theta": 5e5})
    assert inner != ropes(rope_theta=1e4)


def test_a_base_that_the_spec_does_not_take_is_refused(tmp_path: Path) -> None:
    tiny.write(tmp_path, json.loads(GOLDEN.with_name("hf_gemma3.json").read_text()))
    scaling = {"rope_type": "linear", "factor": 8.0, "rope_theta": 77.0}
    said = fault(with_config(tmp_path, rope_parameters="absent", rope_scaling=scaling), Exception)
    assert all(word in said for word in ("rope_theta", "1e+06", "77.0")), said


@pytest.mark.parametrize(
    ("raw", "mentions"),
    [
        (b"", ("empty",)),
        (b"[1, 2]", ("JSON object", "[1, 2]")),
        (b'{"a": ' * 100_000, ("nested",)),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", ("JSON",)),
        (b'{"a": "\xff"}', ("JSON",)),
        (b" " * (5 << 20), ("4,194,304",)),
    ],
    ids=["empty", "list", "deep", "number", "bytes", "large"],
)
def test_configs_that_are_none_are_refused(
    raw: bytes, mentions: tuple[str, ...], folder: Path
) -> None:
    (folder / "config.json").write_bytes(raw)
    said = fault(folder, FormatError)
    assert all(word in said for word in (*mentions, "config.json")), said


@pytest.mark.parametrize("n", [1, 9])
def test_a_list_of_layers_of_another_length_is_refused(n: int, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.with_name("hf_gemma2.json").read_text())
    tiny.write(tmp_path, golden)
    said = fault(with_config(tmp_path, layer_types=["full_attention"] * n), FormatError)
    assert all(word in said for word in ("layer_types", "one for each layer")), said


@pytest.mark.parametrize("size", [0, -16, None])
def test_chunks_without_a_size_are_refused(size: int | None, tmp_path: Path) -> None:
    tiny.write(tmp_path, json.loads(GOLDEN.with_name("hf_llama4.json").read_text()))
    said = fault(with_config(tmp_path, attention_chunk_size=size), UnsupportedError)
    assert "attention_chunk_size: expected 1 or more" in said


def test_unknown_tensors_and_families_are_refused(folder: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    golden["tensors"]["model.layers.0.mlp.extra.weight"] = [4, 4]
    tiny.write(folder, golden)
    assert "model.layers.0.mlp.extra.weight" in fault(folder, UnsupportedError)
    (folder / "config.json").unlink()
    assert "config.json" in fault(folder, FormatError)
