"""Adapters with magnitudes (DoRA), of embeddings, of experts and of latents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

import pyflow
from pyflow.errors import FormatError, PyflowError, ShapeError, UnsupportedError

from ..specs import tiny
from . import batches, tiny_adapters

GOLDEN = Path(__file__).parents[2] / "golden"
Arrays = dict[str, NDArray[np.float32]]
PREFIX = "base_model.model."


def fixture(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of an adapter and of its model."""
    adapter = json.loads((GOLDEN / f"adapters/{name}.json").read_text())
    return adapter, json.loads((GOLDEN / f"families/{adapter['family']}.json").read_text())


CHOICES: list[dict[str, float]] = [
    {},
    {"adapter0": 1.0},
    {"other": 0.5},
    {"adapter0": -1.5, "other": 1.0},
]


@pytest.mark.parametrize(
    "name", ["dora", "embedding_dora", "gpt_oss", "llama4_experts", "deepseek3"]
)
def test_rows_have_the_bits_that_they_have_alone(name: str, tmp_path: Path) -> None:
    adapter, family = fixture(name)
    base = tiny.write_folder(tmp_path / "base", family)
    paths = [
        tiny_adapters.write_all(tmp_path, adapter)[0][0],
        (tiny_adapters.write(tmp_path / "other", adapter | {"seed": 5}), 0.0),
    ]
    tokens = family["tokens"][:24]
    quantize = "q8_0" if name in ("dora", "gpt_oss") else None  # others have rows of 40
    with pyflow.load(base, n_threads=2, quantize=quantize, adapters=paths) as model:
        alone = batches.alone(model, tokens, CHOICES)
        assert len({logits.tobytes() for logits in alone}) == len(CHOICES)
        batches.check(model, tokens, CHOICES, alone)
    with pyflow.load(base, n_threads=1, quantize=quantize, adapters=paths) as model:
        for found, expected in zip(batches.alone(model, tokens, CHOICES), alone, strict=True):
            assert (found == expected).all()


def changed(
    folder: Path, adapter: dict[str, Any], change: Callable[[Arrays], object], **config: object
) -> Path:
    """An adapter whose tensors are not what they were."""
    path = tiny_adapters.write(folder, adapter, **config)
    file = path / "adapter_model.safetensors"
    tensors = dict(safetensors.numpy.load_file(file))
    change(tensors)
    safetensors.numpy.save_file(tensors, file)
    return path


_MODULE = f"{PREFIX}model.layers.0.self_attn.q_proj"
_MAGNITUDE = f"{_MODULE}.lora_magnitude_vector"


@pytest.mark.parametrize(
    ("change", "config", "error", "words"),
    [
        (lambda t: t.pop(_MAGNITUDE), {}, FormatError, "lora_magnitude_vector"),
        (lambda _: None, {"use_dora": False}, FormatError, "lora_magnitude_vector"),
        (
            lambda t: t.update({_MAGNITUDE: t[_MAGNITUDE][1:]}),
            {},
            ShapeError,
            "a magnitude for each",
        ),
        (lambda t: t[_MAGNITUDE].fill(np.nan), {}, FormatError, "q_proj.lora_B.*finite"),
        (lambda t: t[f"{_MODULE}.lora_A.weight"].fill(np.inf), {}, FormatError, "q_proj.*finite"),
    ],
)
def test_broken_magnitudes_are_refused(
    change: Callable[[Arrays], object],
    config: dict[str, object],
    error: type[PyflowError],
    words: str,
    tmp_path: Path,
) -> None:
    adapter, family = fixture("dora")
    base = tiny.write_folder(tmp_path / "base", family)
    path = changed(tmp_path / "adapter", adapter, change, **config)
    with pytest.raises(error, match=words):
        pyflow.load(base, adapters=[path])


def test_rows_without_a_norm_are_refused_at_the_factor_that_makes_them(tmp_path: Path) -> None:
    """W + s B A has a row of zeros, but for rounding, at a factor of 2."""
    adapter, family = fixture("dora")
    name = f"{_MODULE.removeprefix(PREFIX)}.weight"
    weights = dict(tiny.weights(family))
    weights[name][3] = 0
    weights[name][3, 5] = -2.0

    def change(tensors: Arrays) -> None:
        a, b = tensors[f"{_MODULE}.lora_A.weight"], tensors[f"{_MODULE}.lora_B.weight"]
        a[0], b[3] = 0, 0
        a[0, 5], b[3, 0] = 1, 1 / 1.5  # alpha / r is 1.5

    base = tiny.write_folder(tmp_path / "base", family)
    safetensors.numpy.save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    path = changed(tmp_path / "adapter", adapter, change)
    with pyflow.load(base, n_threads=1, adapters=[path]) as model:
        model.generate([5], n_predict=1, adapters={"adapter": 1.5})
        with pytest.raises(FormatError, match=r"q_proj.lora_B.weight: row 3: .* factor of 2"):
            model.generate([5], n_predict=1, adapters={"adapter": 2.0})
        model.generate([5], n_predict=1)


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("embedding", ("embed_tokens", "norm"), UnsupportedError, "its embedding, found none"),
        ("gpt_oss", ("layers.0.mlp", "layers.7.mlp"), UnsupportedError, "found none there"),
        ("gpt_oss", ("mlp.experts.lora", "mlp.other.experts.lora"), ShapeError, "another"),
        ("deepseek3", ("kv_b_proj", "kv_a_layernorm"), ShapeError, "expected"),
    ],
)
def test_other_places_are_refused(
    name: str, change: tuple[str, str], error: type[PyflowError], words: str, tmp_path: Path
) -> None:
    adapter, family = fixture(name)
    base = tiny.write_folder(tmp_path / "base", family)

    def move(tensors: Arrays) -> None:
        if name == "gpt_oss" and error is ShapeError:  # down_proj as gate_up_proj once more
            for key in [key for key in tensors if ".experts.lora" in key]:
                tensors[key] = tensors[key.replace(".experts.", ".experts.base_layer.")].copy()
            return
        for key in [key for key in tensors if change[0] in key]:
            tensors[key.replace(*change)] = tensors.pop(key)

    path = changed(tmp_path / "adapter", adapter, move)
    with pytest.raises(error, match=words):
        pyflow.load(base, adapters=[path])


@pytest.mark.parametrize("cut", [lambda a: a[:-1], lambda a: a[:, :-1]])
def test_experts_of_another_size_are_refused(
    cut: Callable[[NDArray[np.float32]], NDArray[np.float32]], tmp_path: Path
) -> None:
    adapter, family = fixture("gpt_oss")
    base = tiny.write_folder(tmp_path / "base", family)
    name = f"{PREFIX}model.layers.1.mlp.experts.lora_A.weight"
    path = changed(
        tmp_path / "adapter",
        adapter,
        lambda t: t.update({name: np.ascontiguousarray(cut(t[name]))}),
    )
    with pytest.raises(ShapeError, match="experts"):
        pyflow.load(base, adapters=[path])


def test_embeddings_that_peft_writes_beside_adapters_are_the_models(tmp_path: Path) -> None:
    adapter, family = fixture("embedding")
    base = tiny.write_folder(tmp_path / "base", family)
    embedding = tiny.weights(family)["model.embed_tokens.weight"]
    name = f"{PREFIX}model.embed_tokens.base_layer.weight"
    logits = []
    for i, change in enumerate((lambda _: None, lambda t: t.update({name: embedding}))):
        path = changed(tmp_path / str(i), adapter, change)
        with pyflow.load(base, n_threads=1, adapters=[path]) as model:
            logits.append(model.logits(family["tokens"]))
    assert (logits[0] == logits[1]).all()
    path = changed(tmp_path / "grown", adapter, lambda t: t.update({name: embedding[1:]}))
    with pytest.raises(ShapeError, match="embed_tokens: expected an embedding of"):
        pyflow.load(base, adapters=[path])


def gguf_fixture(name: str) -> dict[str, Any]:
    given: dict[str, Any] = json.loads((GOLDEN / f"families/gguf_{name}.json").read_text())
    return given


def near(base: Path, adapter: Path, merged: Path, tokens: list[int]) -> None:
    """Logits with an adapter are those of the merged model, and not those of the base."""
    with (
        pyflow.load(base, n_threads=1, adapters=[adapter]) as model,
        pyflow.load(merged, n_threads=1) as whole,
    ):
        found, expected = model.logits(tokens), whole.logits(tokens)
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        plain = next(iter(batches.alone(model, tokens, [{}])))
        assert np.abs(plain - expected).max() > 0.01 * np.abs(expected).max()


def test_adapters_in_gguf_have_embeddings_and_experts(tmp_path: Path) -> None:
    given = gguf_fixture("qwen3moe")
    base = tiny.write_gguf(tmp_path / "base.gguf", given)
    merged, lows = dict(tiny.weights(given)), {}
    n_vocab, n_embd = given["tensors"]["token_embd.weight"]
    a, b = tiny.weight(1, "a", [n_vocab, 3], 1.0), tiny.weight(2, "b", [n_embd, 3], 1.0)
    lows |= {"token_embd.weight.lora_a": a, "token_embd.weight.lora_b": b}
    merged["token_embd.weight"] = merged["token_embd.weight"] + 2 * a @ b.T
    for name in ("blk.0.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight"):
        n, rows, columns = given["tensors"][name]
        a, b = tiny.weight(1, name, [n, 3, columns], 1.0), tiny.weight(2, name, [n, rows, 3], 1.0)
        lows |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
        merged[name] = merged[name] + 2 * b @ a
    other = tiny.write_gguf(tmp_path / "merged.gguf", given, merged)
    path = tiny_adapters.write_gguf(tmp_path / "adapter.gguf", "qwen3moe", lows, 6.0)
    near(base, path, other, given["tokens"])


def test_blocks_of_adapters_in_gguf_count_as_their_values(tmp_path: Path) -> None:
    import gguf

    given = gguf_fixture("llama3")
    base = tiny.write_gguf(tmp_path / "base.gguf", given)
    name = "blk.0.attn_q.weight"
    rows, columns = given["tensors"][name]
    a, b = tiny.weight(0, "a", [32, columns], 1.0), tiny.weight(0, "b", [rows, 32], 1.0)
    kind = gguf.GGMLQuantizationType.Q8_0
    a, b = (gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind) for x in (a, b))
    logits = []
    for label, change in (("plain", None), ("blocks", kind)):
        lows = {f"{name}.lora_a": a, f"{name}.lora_b": b}
        if change is not None:
            lows = {key: gguf.quants.quantize(value, kind) for key, value in lows.items()}
        path = tiny_adapters.write_gguf(tmp_path / f"{label}.gguf", "llama", lows, 32.0)
        with pyflow.load(base, n_threads=1, adapters=[path]) as model:
            logits.append(model.logits(given["tokens"]))
    assert (logits[0] == logits[1]).all()


def test_experts_of_folders_stand_beside_tensors_of_gguf(tmp_path: Path) -> None:
    """Modules of single experts, and parameters of all; beside a router."""
    given = gguf_fixture("qwen3moe")
    base = tiny.write_gguf(tmp_path / "base.gguf", given)
    merged, shapes = dict(tiny.weights(given)), {}
    n, n_ff, n_embd = given["tensors"]["blk.0.ffn_gate_exps.weight"]
    for j, low in ((1, "gate_proj"), (2, "down_proj")):
        rows, columns = (n_ff, n_embd) if low == "gate_proj" else (n_embd, n_ff)
        module = f"{PREFIX}model.layers.0.mlp.experts.{j}.{low}"
        shapes |= {f"{module}.lora_A.weight": [3, columns], f"{module}.lora_B.weight": [rows, 3]}
    for module, rows, columns in (
        ("1.mlp.experts.base_layer", 2 * n_ff, n_embd),
        ("1.mlp.experts", n_embd, n_ff),
    ):
        name = f"{PREFIX}model.layers.{module}"
        shapes |= {
            f"{name}.lora_A.weight": [3 * n, columns],
            f"{name}.lora_B.weight": [rows, 3 * n],
        }
    router = f"{PREFIX}model.layers.1.mlp.gate"
    shapes |= {f"{router}.lora_A.weight": [3, n_embd], f"{router}.lora_B.weight": [n, 3]}
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    adapter = {"seed": 1, "config": config, "tensors": shapes}
    path = tiny_adapters.write(tmp_path / "adapter", adapter)
    made = tiny_adapters.tensors(adapter)

    def delta(module: str, expert: int | None = None) -> NDArray[np.float32]:
        a, b = (made[f"{PREFIX}model.layers.{module}.lora_{k}.weight"] for k in "AB")
        if expert is not None:
            a, b = a[3 * expert : 3 * expert + 3], b[:, expert::n]
        found: NDArray[np.float32] = 2 * b @ a
        return found

    merged["blk.0.ffn_gate_exps.weight"][1] += delta("0.mlp.experts.1.gate_proj")
    merged["blk.0.ffn_down_exps.weight"][2] += delta("0.mlp.experts.2.down_proj")
    merged["blk.1.ffn_gate_inp.weight"] += delta("1.mlp.gate")
    for j in range(n):
        both = delta("1.mlp.experts.base_layer", j)
        merged["blk.1.ffn_gate_exps.weight"][j] += both[:n_ff]
        merged["blk.1.ffn_up_exps.weight"][j] += both[n_ff:]
        merged["blk.1.ffn_down_exps.weight"][j] += delta("1.mlp.experts", j)
    other = tiny.write_gguf(tmp_path / "merged.gguf", given, merged)
    near(base, path, other, given["tokens"])


def test_modules_of_single_experts_stand_beside_theirs(tmp_path: Path) -> None:
    """As transformers 4 named Mixtral's, and its router as transformers 5 does."""
    given = json.loads((GOLDEN / "families/hf_mixtral.json").read_text())
    base = tiny.write_folder(tmp_path / "base", given)
    merged, shapes = dict(tiny.weights(given)), {}
    places = {
        "model.layers.0.block_sparse_moe.experts.1.w1": "",
        "model.layers.1.block_sparse_moe.experts.0.w2": "",
        "model.layers.0.mlp.gate": "model.layers.0.block_sparse_moe.gate",
    }
    for module, name in places.items():
        rows, columns = given["tensors"][f"{name or module}.weight"]
        shapes[f"{PREFIX}{module}.lora_A.weight"] = [3, columns]
        shapes[f"{PREFIX}{module}.lora_B.weight"] = [rows, 3]
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    adapter = {"seed": 1, "config": config, "tensors": shapes}
    made = tiny_adapters.tensors(adapter)
    for module, name in places.items():
        a, b = (made[f"{PREFIX}{module}.lora_{k}.weight"] for k in "AB")
        merged[f"{name or module}.weight"] += 2 * b @ a
    other = tiny.write_folder(tmp_path / "merged", given)
    safetensors.numpy.save_file(merged, other / "model.safetensors", metadata={"format": "pt"})
    path = tiny_adapters.write(tmp_path / "adapter", adapter)
    near(base, path, other, given["tokens"])


@pytest.mark.parametrize("name", ["deepseek3", "deepseek2_old"])
def test_latents_of_folders_stand_beside_halves_of_gguf(name: str, tmp_path: Path) -> None:
    given = gguf_fixture(name)
    base = tiny.write_gguf(tmp_path / "base.gguf", given)
    merged = dict(tiny.weights(given))
    metadata = given["metadata"]
    rank = metadata["deepseek2.attention.kv_lora_rank"]
    n_heads, rope = (
        metadata["deepseek2.attention.head_count"],
        metadata["deepseek2.rope.dimension_count"],
    )
    ends = "_mla" if "blk.0.attn_k_b.weight" in given["tensors"] else ""
    nope = metadata[f"deepseek2.attention.key_length{ends}"] - rope
    value = metadata[f"deepseek2.attention.value_length{ends}"]
    module = f"{PREFIX}model.layers.1.self_attn.kv_b_proj"
    shapes = {
        f"{module}.lora_A.weight": [3, rank],
        f"{module}.lora_B.weight": [n_heads * (nope + value), 3],
    }
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    adapter = {"seed": 1, "config": config, "tensors": shapes}
    made = tiny_adapters.tensors(adapter)
    delta = 2 * made[f"{module}.lora_B.weight"] @ made[f"{module}.lora_A.weight"]
    if ends:
        by_head = delta.reshape(n_heads, nope + value, rank)
        merged["blk.1.attn_k_b.weight"] += by_head[:, :nope].transpose(0, 2, 1)
        merged["blk.1.attn_v_b.weight"] += by_head[:, nope:]
    else:
        merged["blk.1.attn_kv_b.weight"] += delta
    other = tiny.write_gguf(tmp_path / "merged.gguf", given, merged)
    path = tiny_adapters.write(tmp_path / "adapter", adapter)
    near(base, path, other, given["tokens"])
