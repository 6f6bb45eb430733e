"""`pyflow spec check` tells what is missing, of another shape or has no place, and exits with 3."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from pyflow import cli, formats
from pyflow.errors import FormatError, ShapeError, UnsupportedError
from pyflow.model import load
from pyflow.specs import build_spec

from . import tiny

GOLDEN = Path(__file__).parents[2] / "golden/families"


def write(folder: Path, name: str = "hf_llama2", **changes: Any) -> Path:
    """A fixture's checkpoint, but for some tensors: of another shape, or None."""
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    tensors = golden["tensors"] | {key.replace("__", "."): shape for key, shape in changes.items()}
    golden["tensors"] = {name: shape for name, shape in tensors.items() if shape is not None}
    tiny.write(folder, golden)
    return folder


def check(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    code = cli.main(["spec", "check", *map(str, args)])
    return code, capsys.readouterr().out


def checked(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    code, out = check(capsys, folder, "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == (0 if found["fits"] else 3)
    return found


def test_a_model_that_fits_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = check(capsys, write(tmp_path, "hf_gemma3"))
    assert code == 0
    assert out.startswith(f"{tmp_path}/model.safetensors: gemma3, as gemma3.toml describes it\n")
    for line in (
        "64 positions, 41 tensors",
        "embedding: 96 x 64 x 8",
        "layers 0, 2:",
        "layer 1:",
        "rope 0 of 32 (halves), window 8, rms norms of heads  (h -> h)",
        "ffn: 96 gelu_tanh, gated  (h -> h)",
        "head: rms norm, 96 logits, by the embedding",
    ):
        assert line in out
    assert out.endswith("\nit fits\n")
    found = checked(capsys, tmp_path)
    assert found["fits"]
    assert found["problems"] == []
    assert found["facts"]["n_heads"] == 4
    assert [one["numbers"] for one in found["layers"]] == [[0, 2], [1]]


def test_all_that_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(
        tmp_path,
        model__layers__0__self_attn__q_proj__weight=None,
        model__layers__0__self_attn__q_porj__weight=[64, 64],
        model__layers__1__mlp__up_proj__weight=[97, 64],
        model__layers__1__mlp__extra=[2, 3],
    )
    code, out = check(capsys, folder)
    assert code == 3
    missing = r"decoder\.0\.attn\.q: .*layers\.0\.self_attn\.q_proj\.weight.*q_porj\.weight"
    shape = r"decoder\.1\.ffn\.up: .*layers\.1\.mlp\.up_proj\.weight.*96 x 64.*97 x 64"
    unused = r"model\.layers\.1\.mlp\.extra.*2 x 3"
    for line in (missing, shape, unused):
        assert re.search(line, out)
    found = checked(capsys, folder)
    kinds = {(p["kind"], p["tensor"]) for p in found["problems"]}
    assert kinds == {
        ("missing", "model.layers.0.self_attn.q_proj.weight"),
        ("shape", "model.layers.1.mlp.up_proj.weight"),
        ("unused", "model.layers.0.self_attn.q_porj.weight"),
        ("unused", "model.layers.1.mlp.extra"),
    }
    assert found["layers"] is None
    with pytest.raises(FormatError, match=r"q_proj.*'pyflow spec check"):
        build_spec(formats.open(folder))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model__norm__weight": None}, FormatError),
        ({"model__norm__weight": [65]}, ShapeError),
        ({"model__layers__0__self_attn__o_proj__bias": [64]}, UnsupportedError),  # attention_bias
        ({"model__layers__0__self_attn__o_proj__scale": [64]}, UnsupportedError),
        ({"model__layers__0__self_attn__rotary_emb__inv_freq": [8]}, None),  # ignored
    ],
)
def test_what_does_not_fit_does_not_load(
    changes: dict[str, Any],
    error: type[Exception] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write(tmp_path, **changes)
    assert checked(capsys, folder)["fits"] is (error is None)
    if error is not None:
        with pytest.raises(error):
            build_spec(formats.open(folder))


def test_of_another_model_not_everything_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, "hf_gpt2")
    config = json.loads((GOLDEN / "hf_llama2.json").read_text())["config"]
    config["num_hidden_layers"] = 100
    (folder / "config.json").write_text(json.dumps(config))
    code, out = check(capsys, folder)
    assert code == 3
    assert re.search(r"\b180 .*--json", out)


def test_errors_are_those_of_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["spec", "check", str(tmp_path / "none")]) == 3
    assert cli.main(["spec", "check", str(write(tmp_path, "hf_falcon_rw"))]) == 3
    assert "alibi" in capsys.readouterr().err
    assert cli.main(["spec", "chek", str(tmp_path)]) == 2
    assert "'check'" in capsys.readouterr().err


DOC = (Path(__file__).parents[3] / "docs/add-a-model.md").read_text()


def write_walk_through(folder: Path) -> str:
    """The model of the documentation, with random weights; its spec."""
    spec: str = re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)[0]
    tensors = re.findall(r"```text\n(.*?)```", DOC, re.DOTALL)[0]
    shapes = {
        name: [int(n) for n in shape.split(" x ")]
        for name, shape in re.findall(r"^  (\S+) +F32 +(\d+(?: x \d+)?)$", tensors, re.M)
    }
    tiny.write(folder, {"seed": 1, "tensors": shapes})
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / "pyflow.toml").write_text(spec)
    return spec


def test_the_walk_through_of_the_documentation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_walk_through(tmp_path)
    shown = re.findall(r"```text\n(.*?)```", DOC, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    code, out = check(capsys, "weights.safetensors")
    assert (code, out) == (0, shown)
    (tmp_path / "pyflow.toml").write_text(spec.replace("{i}/told", "{i}/tell"))
    code, out = check(capsys, "weights.safetensors")
    assert code == 3
    assert re.search(r"0/tell\.weight.*0/told\.weight", out)


# By the specs' names: a fixture, and the keys of its config.json for the sizes that the spec gives.
OF_THE_DOCUMENTATION = {
    "mistral-7b-instruct": (
        "families/hf_mistral",
        "vocab_size hidden_size max_position_embeddings num_hidden_layers num_attention_heads "
        "num_key_value_heads intermediate_size rms_norm_eps sliding_window rope_theta",
    ),
    "bert-base-multilingual": (
        "text_encoders/bert",
        "vocab_size hidden_size max_position_embeddings num_hidden_layers num_attention_heads "
        "intermediate_size type_vocab_size hidden_act layer_norm_eps",
    ),
    "m2m100-418m": (
        "encoder_decoders/m2m_100",
        "vocab_size d_model max_position_embeddings encoder_layers decoder_layers "
        "encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim "
        "activation_function scale_embedding decoder_start_token_id pad_token_id",
    ),
}


@pytest.mark.parametrize("name", OF_THE_DOCUMENTATION)
def test_models_of_the_documentation_are_those_of_their_configs(name: str, tmp_path: Path) -> None:
    golden, keys = OF_THE_DOCUMENTATION[name]
    given = json.loads((GOLDEN.parent / f"{golden}.json").read_text())
    (spec,) = (one for one in re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL) if name in one)
    facts = re.findall(r"^(\w+) = (.+)$", spec.split("[hf.facts]")[1], re.M)
    for (fact, value), key in zip(facts, keys.split(), strict=True):
        said = json.dumps(given["config"][key]) if key in given["config"] else value
        spec = re.sub(rf"^{fact} = .+$", f"{fact} = {said}", spec, flags=re.M)
    if name == "mistral-7b-instruct":
        spec = spec.replace("eps = 1e-5", "eps = 1e-6")  # the default of the class
    plain, own = (tiny.write(tmp_path / one, given) for one in ("plain", "own"))
    (own / "config.json").unlink()
    (own / "pyflow.toml").write_text(spec)
    one, other = (build_spec(formats.open(folder)) for folder in (plain, own))
    assert replace(other, name=one.name, architecture=one.architecture) == one
    assert other.architecture == name


@pytest.mark.slow
def test_the_proof_of_the_documentation(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    oracle: Callable[[str], Any],
) -> None:
    torch = oracle("torch")
    torch.manual_seed(1)
    write_walk_through(tmp_path)
    monkeypatch.chdir(tmp_path)
    weights = formats.open(tmp_path / "weights.safetensors")
    w = {t.name: torch.tensor(weights.array(t.name)) for t in weights.tensors}

    def norm(x: Any, name: str) -> Any:
        return torch.nn.functional.rms_norm(x, (64,), w[name], 1e-6)

    def heads(x: Any, n: int) -> Any:
        return x.unflatten(-1, (n, 16)).transpose(1, 2)

    def turned(x: Any) -> Any:
        angles = torch.outer(torch.arange(x.shape[2]), 10000.0 ** (-torch.arange(8) / 8))
        a, b, c, s = x[..., :8], x[..., 8:], angles.cos(), angles.sin()
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def model(ids: Any) -> Any:
        x = w["words.weight"][ids]
        h = norm(x, "0/ask_norm.weight")
        q, kv = heads(h @ w["0/ask.weight"].T, 4), h @ w["0/told.weight"].T
        k, v = heads(kv[..., :32], 2), heads(kv[..., 32:], 2)
        told = torch.nn.functional.scaled_dot_product_attention(
            turned(q), turned(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True
        )
        x = x + told.transpose(1, 2).flatten(2) @ w["0/out.weight"].T
        h = norm(x, "0/think_norm.weight")
        gate = torch.nn.functional.silu(h @ w["0/think/a.weight"].T)
        x = x + (gate * (h @ w["0/think/b.weight"].T)) @ w["0/think/c.weight"].T
        return norm(x, "last_norm.weight") @ w["words.weight"].T

    proof = textwrap.dedent(re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)[0])
    exec(proof, {"model": model})
    out = capsys.readouterr().out
    assert 0 < float(out) < 0.004


def test_long_names_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, **{"x" * 5000: [2, 3]})
    code, out = check(capsys, folder)
    assert code == 3
    assert re.search(r"\bx{200}\b.*2 x 3", out)
    assert len(out) < 3000
    (folder / "pyflow.toml").write_text("")
    assert cli.main(["spec", "check", str(folder)]) == 3
    said = capsys.readouterr().err
    assert re.search(r"pyflow\.toml: spec: .*1.*None", said)
    assert "download" not in said


@pytest.mark.parametrize("why", ["type", "heads"])
def test_what_the_engine_refuses_a_check_refuses_in_the_same_words(
    why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors fit their spec, but have a type, or heads a size, that no kernel takes."""
    golden = json.loads((GOLDEN / "hf_llama2.json").read_text())
    weights = tiny.weights(golden)
    tiny.write(tmp_path, golden)
    if why == "type":
        name = "model.layers.1.mlp.up_proj.weight"
        weights[name] = weights[name].astype(np.int32)
    else:
        config = json.loads((tmp_path / "config.json").read_text())
        config |= {"head_dim": 16400, "num_attention_heads": 1, "num_key_value_heads": 1}
        (tmp_path / "config.json").write_text(json.dumps(config))
        n_embd = config["hidden_size"]
        for name in [name for name in weights if "self_attn" in name]:
            shape = (n_embd, 16400) if "o_proj" in name else (16400, n_embd)
            weights[name] = np.zeros(shape, np.float32)
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError) as refusal:
        load(tmp_path, n_threads=1)
    found = checked(capsys, tmp_path)
    assert not found["fits"]
    assert found["unsupported"] == [str(refusal.value)]
    assert str(tmp_path) in str(refusal.value)
