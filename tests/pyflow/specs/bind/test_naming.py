"""The tensors of folders have the names that the same models have in GGUF files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyflow.quant import mixes
from pyflow.quant.convert import Options
from pyflow.quant.imatrix import Squares, by_tensor, read_imatrix, write_imatrix
from pyflow.quant.naming import Naming, Part, of_gguf
from pyflow.quant.plan import Recipe, Step

from pyflow import _core, formats
from pyflow.errors import UnsupportedError
from pyflow.gguf_export import to_gguf
from pyflow.specs import describe, naming

from .. import tiny
from ..test_families import FIXTURES, NAMES, POOL, REFUSED, SPECS, fixture

HUBS = [n.removeprefix("hf_") for n in NAMES if n.startswith("hf_") and n not in REFUSED]
BOTH = [name for name in HUBS if f"gguf_{name}" in NAMES]
CONFIG: dict[str, Any] = fixture("hf_llama2")["config"]


def named(folder: Path, name: str) -> tuple[formats.Checkpoint, Naming]:
    checkpoint = formats.open(tiny.write(folder, fixture(name)))
    if checkpoint.format == "GGUF":
        return checkpoint, of_gguf(checkpoint)
    if name.startswith("own_"):
        shutil.copy(SPECS / f"{name.removeprefix('own_')}.toml", folder / "pyflow.toml")
    return checkpoint, naming(describe(checkpoint))


def matrices(checkpoint: formats.Checkpoint, names: Naming) -> list[Part]:
    """What would be quantized."""
    return [
        names.parts[t.name]
        for t in checkpoint.tensors
        if t.name in names.parts and mixes.is_matrix(names.parts[t.name].name, t.shape)
    ]


@pytest.mark.parametrize("name", BOTH)
def test_matrices_have_the_roles_of_the_gguf_file(name: str, tmp_path: Path) -> None:
    hub, gguf = named(tmp_path, f"hf_{name}"), named(tmp_path, f"gguf_{name}")
    found, wanted = ({mixes.role_of(p.name) for p in matrices(*one)} for one in (hub, gguf))
    # Some fixtures have a head of their own in one of the two, or a layer without experts.
    dense = name.endswith("moe") or name == "llama4"
    extra = {"output"} | ({"ffn_gate", "ffn_up", "ffn_down"} if dense else set())
    # One with ffn_up_exps in the hub; keys and values by latents are one too.
    extra |= {"ffn_gate_exps"} if name in {"gpt_oss", "llama4"} else set()
    extra |= {"ffn_up_exps", "ffn_gate_up_exps"} if name == "gemma4_moe" else set()
    extra |= {"attn_kv_b", "attn_k_b", "attn_v_b"} if name == "deepseek3" else set()
    assert found - extra == wanted - extra


@pytest.mark.parametrize("name", sorted(n for n in {*NAMES} - {*REFUSED} if not n.startswith("gg")))
def test_every_tensor_has_a_name_and_every_matrix_its_own(name: str, tmp_path: Path) -> None:
    checkpoint, names = named(tmp_path, name)
    described = describe(checkpoint)
    assert {*names.parts} == {t.name for t in checkpoint.tensors} - described.built.ignored
    parts = matrices(checkpoint, names)
    assert len({(part.name, part.expert) for part in parts}) == len(parts)
    assert {*names.kept} <= {t.name for t in checkpoint.tensors if len(t.shape) > 1}
    transposed = ("hf_gpt2", "hf_gpt_oss", "hf_llama4", "own_invented")
    assert bool(names.kept) == name.startswith(transposed)


def test_heads_that_share_keys_are_counted(tmp_path: Path) -> None:
    _, names = named(tmp_path, "hf_llama3")
    config = fixture("hf_llama3")["config"]
    assert names.gqa == config["num_attention_heads"] // config["num_key_value_heads"] > 1
    assert names.n_experts == 0


def test_the_roles_of_experts_are_those_of_their_stacks(tmp_path: Path) -> None:
    _, names = named(tmp_path, "hf_mixtral")
    part = names.parts["model.layers.1.block_sparse_moe.experts.2.w2.weight"]
    assert (part.name, part.expert) == ("blk.1.ffn_down_exps.weight", 2)
    assert names.n_experts > 2


def measured(name: str, checkpoint: formats.Checkpoint, names: Naming) -> dict[str, Squares]:
    """What the matrices of a fixture were multiplied by when its tokens were read."""
    stage = _core.Stage(checkpoint.native, describe(checkpoint).spec.stage(), POOL)
    context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
    squares = _core.InputMoments(stage)
    context.observe(squares)
    tokens = np.array(fixture(name)["tokens"], np.int32)
    at = np.arange(len(tokens), dtype=np.int32)
    context.forward(tokens, at, 0, at, "prefill")
    return by_tensor(squares.sums(), {t.name: t.shape for t in checkpoint.tensors}, names)


def test_what_is_stored_the_other_way_round_is_measured_as_in_its_gguf_file(tmp_path: Path) -> None:
    hub, names = named(tmp_path, "hf_gpt2")
    assert names.kept
    to_gguf(hub).write(tmp_path / "m.gguf", Recipe("F32"))
    gguf = formats.open(tmp_path / "m.gguf")
    found, wanted = (measured("hf_gpt2", c, n) for c, n in ((hub, names), (gguf, of_gguf(gguf))))
    assert {*found} == {*wanted} >= {"blk.0.attn_qkv.weight", "blk.1.ffn_down.weight"}
    for name, squares in found.items():
        np.testing.assert_allclose(squares.sums, wanted[name].sums, rtol=1e-3)
        np.testing.assert_array_equal(squares.n_rows, wanted[name].n_rows)
    write_imatrix(tmp_path / "i.gguf", found, datasets=["text"], n_chunks=1, chunk_size=64)
    plan: list[Step] = []
    to_gguf(hub).write(
        tmp_path / "q.gguf",
        Recipe("Q8_0"),
        Options(read_imatrix(tmp_path / "i.gguf"), on_plan=plan.extend),
    )
    assert {step.tensor.name for step in plan if step.importance is not None} == {*found}


def test_the_router_of_a_shared_expert_may_be_a_vector(tmp_path: Path) -> None:
    checkpoint, names = named(tmp_path, "gguf_qwen2moe")
    shapes = {t.name: t.shape for t in checkpoint.tensors}
    assert shapes["blk.0.ffn_gate_inp_shexp.weight"] == (64,)
    found = measured("gguf_qwen2moe", checkpoint, names)
    assert found["blk.0.ffn_gate_inp_shexp.weight"].sums.shape == (1, 64)
    wanted = {n for n, s in shapes.items() if mixes.is_matrix(n, s)} - {"token_embd.weight"}
    assert wanted <= {*found}


@pytest.mark.parametrize("name", ["hf_mixtral", "hf_gpt_oss"])
def test_what_experts_are_multiplied_by_is_that_of_their_stack(name: str, tmp_path: Path) -> None:
    checkpoint, names = named(tmp_path, name)
    golden = fixture(name)
    found = measured(name, checkpoint, names)
    n_used = len(golden["tokens"]) * golden["config"]["num_experts_per_tok"]
    fused = name == "hf_gpt_oss"
    for role in (*(() if fused else ("ffn_gate_exps",)), "ffn_up_exps", "ffn_down_exps"):
        stack = found[f"blk.1.{role}.weight"]
        assert stack.sums.shape == (names.n_experts, 96 if role == "ffn_down_exps" else 64)
        assert stack.n_rows.sum() == n_used
    assert {*found} == {part.name for part in names.parts.values()} & {*found}


@pytest.mark.parametrize("place", ["", "text_config"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quant_method": "hqq", "bits": 4}, "quantization_config.*'pyflow'.*'gptq'.*'hqq'"),
        ({"quant_method": "aqlm"}, "'aqlm'"),
        ({"quant_method": "Pyflow", "version": 1}, "'Pyflow'"),
        ({"quant_method": ["pyflow"]}, r"\['pyflow'\]"),
        ({"load_in_4bit": True}, "None"),
        ({}, "None"),
        ([], r"\[\]"),
        ("pyflow", "'pyflow'"),
        ({"quant_method": "pyflow"}, r"quantization_config\.version.*1.*None"),
        ({"quant_method": "pyflow", "version": 2}, r"version.*1.*2"),
    ],
)
def test_weights_that_others_have_quantized_are_refused_by_name(
    place: str, given: object, message: str, tmp_path: Path
) -> None:
    path = tiny.write(tmp_path, fixture("hf_llama2"))
    own = CONFIG | {"quantization_config": given}
    config = {"model_type": "llava", place: own} if place else own
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=f"config.json: {place}.*{message}"):
        describe(formats.open(path))


@pytest.mark.parametrize("given", [None, {"quant_method": "pyflow", "version": 1, "type": "x"}])
def test_our_own_are_taken(given: object, tmp_path: Path) -> None:
    path = tiny.write(tmp_path, fixture("hf_llama2"))
    (path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": given}))
    assert describe(formats.open(path)).spec.n_embd == 64


def test_the_fixtures_are_there() -> None:
    assert len(BOTH) > 15
    assert FIXTURES.is_dir()
