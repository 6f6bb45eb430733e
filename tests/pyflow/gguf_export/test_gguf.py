"""A model as GGUF is the model of the folder: logits, tensors, and keys as others have them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray
from pyflow.formats import arrays
from pyflow.quant.mixes import is_matrix

from pyflow import formats
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.gguf_export import to_gguf
from pyflow.specs import build_spec, describe, naming

from ...hostile.torch_builder import write_pt
from ..specs import tiny
from ..specs.test_families import FIXTURES, fixture, logits
from .written import write

# Of the fixtures, what is changed so that GGUF can say it: theirs are there to be told apart.
CHANGED: dict[str, dict[str, Any]] = {
    "hf_gemma2": {"query_pre_attn_scalar": 32},
    "hf_gemma3": {
        "query_pre_attn_scalar": 32,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 7,
    },
    "hf_gpt_neox_sequential": {"hidden_act": "gelu"},
    "hf_qwen2": {"use_sliding_window": False},
    "hf_qwen2moe": {"decoder_sparse_step": 1},
    "hf_qwen3moe": {"mlp_only_layers": []},
}
REFUSED = {
    "hf_gemma2": r"layer 0\b.*attention.*scale.*0\.1767.*0\.2041",
    "hf_gemma3": r"layer 0\b.*attention.*scale",
    "hf_gpt_neox_sequential": r"layer 0\b.*ffn.*activation.*'gelu'.*'gelu_tanh'",
    "hf_qwen2": r"\bwindow\b.*\b0\b.*\b7\b",
    "hf_qwen2moe": r"blk\.0\.ffn_gate_inp\.weight",
    "hf_qwen3moe": r"blk\.2\.ffn_gate_inp\.weight",
    "hf_qwen3moe_window": r"blk\.0\.ffn_gate_inp\.weight",
    "hf_smollm3_window": r"\bwindow\b.*\b9\b.*\b0\b",
    "hf_exaone4_window": r"\bwindow\b.*\b0\b.*\b9\b",
    "hf_ministral": r"\bwindow\b.*\b9\b.*\b0\b",
    "hf_phi_norms": r"decoder\.0\.attn\.q_norm",
    **dict.fromkeys(("hf_deepseek2", "hf_deepseek2_lite", "hf_deepseek3"), "latent attention"),
    **dict.fromkeys(("hf_llama4", "hf_llama4_plain"), "expected 0 or 8192"),
    "hf_lfm2_biases": r"blk\.0\.shortconv\.in_proj\.bias",
    "hf_llama_dynamic": "rope_scaling.*dynamic",
    "hf_falcon_sequential": r"blk\.0\.attn_qkv\.bias",
    "hf_falcon_rw": "alibi",
    "hf_gemma3n_three": r"laurel_l.*expected 64 x 64, found 12 x 64",
}
NAMES = sorted(p.stem for p in FIXTURES.glob("hf_*.json"))
SAME: dict[str, dict[str, Any]] = {name: {} for name in NAMES if name not in REFUSED} | CHANGED
# With numbers that are no float32, as GGUF has them.
ROUNDED = [
    "hf_olmo3",
    "hf_gemma3",
    "hf_granite",
    "hf_phi3_longrope",
    "hf_phi3_longrope_short",
    "hf_phi4_mini",
]
# What llama.cpp's converter would have written for the same model.
TWINS = {
    "hf_bloom": "gguf_bloom",
    "hf_falcon40b": "gguf_falcon40b",
    "hf_falcon7b": "gguf_falcon7b",
    "hf_gemma": "gguf_gemma",
    "hf_gemma2": "gguf_gemma2",
    "hf_gemma3": "gguf_gemma3",
    "hf_gpt2": "gguf_gpt2",
    "hf_gpt_neox": "gguf_gptneox",
    "hf_granite": "gguf_granite",
    "hf_llama2": "gguf_llama2",
    "hf_llama3": "gguf_llama3",
    "hf_llama_linear": "gguf_llama_linear",
    "hf_llama_yarn": "gguf_llama_yarn",
    "hf_mixtral": "gguf_mixtral",
    "hf_olmo2": "gguf_olmo2",
    "hf_phi3": "gguf_phi3",
    "hf_phi3_longrope": "gguf_phi3_longrope",
    "hf_qwen2": "gguf_qwen2",
    "hf_qwen2moe": "gguf_qwen2moe",
    "hf_qwen3": "gguf_qwen3",
    "hf_qwen3moe": "gguf_qwen3moe",
    "hf_smollm3": "gguf_smollm3",
    "hf_phi2": "gguf_phi2",
    "hf_glm4": "gguf_glm4",
    "hf_exaone4": "gguf_exaone4",
    "hf_cohere2": "gguf_cohere2",
    "hf_olmoe": "gguf_olmoe",
    "hf_ernie4_5": "gguf_ernie4_5",
    "hf_olmo3": "gguf_olmo3",
    "hf_cohere": "gguf_cohere",
    "hf_seed_oss": "gguf_seed_oss",
    "hf_stablelm": "gguf_stablelm",
    "hf_stablelm2_12b": "gguf_stablelm2_12b",
    "hf_starcoder2": "gguf_starcoder2",
    "hf_yi": "gguf_yi",
}


def folder_of(name: str, folder: Path, change: dict[str, Any]) -> formats.Checkpoint:
    golden = fixture(name)
    for i in range(
        golden["config"].get("num_hidden_layers", 0), change.get("num_hidden_layers", 0)
    ):
        shapes = {k: v for k, v in golden["tensors"].items() if ".0." in k}
        golden["tensors"] |= {k.replace(".0.", f".{i}."): v for k, v in shapes.items()}
    if "decoder_sparse_step" in change or "mlp_only_layers" in change:  # all layers as the second
        shapes = {k: v for k, v in golden["tensors"].items() if "layers.1." in k}
        for i in (0, 2):
            stays = {k: v for k, v in golden["tensors"].items() if f"layers.{i}." not in k}
            golden["tensors"] = stays | {
                k.replace("layers.1.", f"layers.{i}."): v for k, v in shapes.items()
            }
    return formats.open(tiny.write(folder, golden | {"config": golden["config"] | change}))


@pytest.mark.parametrize("name", SAME)
def test_a_model_and_its_gguf_file_give_the_same_logits(name: str, tmp_path: Path) -> None:
    golden = fixture(name)
    checkpoint = folder_of(name, tmp_path / "hub", SAME[name])
    other = formats.open(write(tmp_path / "m.gguf", to_gguf(checkpoint)))
    n_ctx = golden.get("n_ctx", 64)
    want = logits(checkpoint, golden["tokens"], n_ctx, "prefill")
    got = logits(other, golden["tokens"], n_ctx, "prefill")
    assert np.array_equal(got.argmax(1), want.argmax(1))
    orders = {tuple(r.interleaved for r in build_spec(c).ropes) for c in (checkpoint, other)}
    if len(orders) == 1 and name not in ROUNDED:
        assert np.array_equal(got, want)
    else:  # sums in another order
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("name", SAME)
def test_matrices_are_called_as_importance_and_types_know_them(name: str, tmp_path: Path) -> None:
    checkpoint = folder_of(name, tmp_path, SAME[name])
    parts = naming(describe(checkpoint)).parts
    found = {
        parts[t.name].name
        for t in checkpoint.tensors
        if t.name in parts and is_matrix(parts[t.name].name, t.shape)
    }
    made = {t.name for t in to_gguf(checkpoint).tensors if is_matrix(t.name, t.shape)}
    if name in ("hf_gpt_oss", "hf_gemma4_moe"):  # gate and up are one tensor in the folder
        made = {name for name in made if "ffn_gate_exps" not in name}
    assert found == made


def stored(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The values as files have them; of BF16 the bits, those of float32 cut off."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(np.float16 if dtype == "F16" else np.float32)


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]], dtype: str) -> None:
    header, data = {}, b""
    for name, values in tensors.items():
        ends = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": ends}
        data += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_keep_their_bits(dtype: str, tmp_path: Path) -> None:
    golden = fixture("hf_llama2")
    folder = tiny.write(tmp_path, golden)
    weights = tiny.weights(golden)
    weights["model.layers.0.mlp.up_proj.weight"][0, :4] = [-0.0, np.inf, np.nan, 6e-8]
    tensors = {k: stored(v, dtype) for k, v in weights.items()}
    up = tensors["model.layers.0.mlp.up_proj.weight"]
    write_safetensors(folder / "model.safetensors", tensors, dtype)
    made = to_gguf(formats.open(folder)).rows("blk.0.ffn_up.weight")
    assert made.nbytes == up.nbytes
    found = b"".join(made[i : i + 5].tobytes() for i in range(0, len(made), 5))
    assert found == up.tobytes()


@pytest.mark.parametrize("name", REFUSED)
def test_what_gguf_cannot_say_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[name]):
        to_gguf(folder_of(name, tmp_path, {}))


@pytest.mark.parametrize("name", TWINS)
def test_keys_and_tensors_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    model = to_gguf(folder_of(name, tmp_path, SAME[name]))
    twin = fixture(TWINS[name])
    for key, value in twin["metadata"].items():
        if key != "stablelm.use_parallel_residual":  # which no reader looks at
            assert type(model.metadata[key]) is type(value), key

    def generic(names: Any) -> set[str]:
        """Without layers, and what some models of a family have and some have not."""
        roles = {".".join(part for part in n.split(".") if not part.isdigit()) for n in names}
        return roles - {"output.weight"}

    assert generic(t.name for t in model.tensors) == generic(twin["tensors"])


def test_experts_of_all_layers_become_one_tensor_each(tmp_path: Path) -> None:
    checkpoint = folder_of("hf_mixtral", tmp_path, {})
    model = to_gguf(checkpoint)
    experts = next(t for t in model.tensors if t.name == "blk.1.ffn_down_exps.weight")
    assert (experts.shape, experts.n_rows) == ((4, 64, 96), 256)
    third = checkpoint.array("model.layers.1.block_sparse_moe.experts.2.w2.weight")
    assert np.array_equal(experts.rows(128, 192), third)
    assert model.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize("name", ["hf_llama2", "hf_gpt2", "hf_falcon40b", "hf_mixtral", "hf_phi3"])
def test_pieces_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for tensor in to_gguf(folder_of(name, tmp_path, {})).tensors:
        whole = tensor.rows(0, tensor.n_rows)
        assert whole.shape == (tensor.n_rows, tensor.shape[-1])
        cuts = sorted({0, tensor.n_rows, *random.integers(0, tensor.n_rows + 1, 3).tolist()})
        pieces = [tensor.rows(a, b) for a, b in itertools.pairwise(cuts)]
        assert np.array_equal(np.concatenate(pieces), whole), tensor.name


def test_queries_are_turned_pair_by_pair_and_nothing_else(tmp_path: Path) -> None:
    checkpoint = folder_of("hf_llama_biases", tmp_path, {})
    tensors = {t.name: t for t in to_gguf(checkpoint).tensors}
    hub = checkpoint.array("model.layers.0.self_attn.q_proj.weight")
    own = tensors["blk.0.attn_q.weight"].rows(0, 128)
    # The first pair of the second of four heads of 32.
    assert np.array_equal(own[[32, 33]], hub[[32, 48]])
    bias = checkpoint.array("model.layers.0.self_attn.q_proj.bias")
    assert np.array_equal(tensors["blk.0.attn_q.bias"].rows(0, 1)[0, [32, 33]], bias[[32, 48]])
    hub = checkpoint.array("model.layers.0.self_attn.v_proj.weight")
    assert np.array_equal(tensors["blk.0.attn_v.weight"].rows(0, 64), hub)


@pytest.mark.parametrize(("dtype", "kind"), [("F16", "HalfStorage"), ("BF16", "BFloat16Storage")])
def test_weights_keep_their_type_and_vectors_get_float32(
    dtype: str, kind: str, tmp_path: Path
) -> None:
    golden = fixture("hf_qwen3")
    path = tiny.write(tmp_path, golden) / "model.pt"
    values = {k: stored(v, dtype) for k, v in tiny.weights(golden).items()}
    write_pt(path, values, kind)
    (tmp_path / "model.safetensors").unlink()
    for tensor in to_gguf(formats.open(path)).tensors:
        assert tensor.dtype == ("F32" if "norm" in tensor.name else dtype)
    q = next(t for t in to_gguf(formats.open(path)).tensors if t.name == "blk.0.attn_q.weight")
    want = values["model.layers.0.self_attn.q_proj.weight"]
    if dtype == "BF16":
        want = (want.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(q.rows(0, q.n_rows), want)


def test_a_head_that_is_the_embedding_is_left_out(tmp_path: Path) -> None:
    golden = fixture("hf_llama3")
    path = tiny.write(tmp_path, golden) / "pytorch_model.bin"
    values: dict[str, NDArray[Any]] = dict(tiny.weights(golden))
    values["lm_head.weight"] = values["model.embed_tokens.weight"]
    write_pt(path, values, "FloatStorage")
    (tmp_path / "model.safetensors").unlink()
    names = {t.name for t in to_gguf(formats.open(path)).tensors}
    assert "output.weight" not in names
    assert {"token_embd.weight", "rope_freqs.weight"} <= names


def test_the_gguf_package_reads_what_is_written(tmp_path: Path) -> None:
    checkpoint = folder_of("hf_llama3", tmp_path / "hub", {})
    model = to_gguf(checkpoint)
    reader = gguf.GGUFReader(write(tmp_path / "m.gguf", model))
    for key, value in model.metadata.items():
        assert reader.fields[key].contents() == value
    found = {t.name: t for t in reader.tensors}
    assert found.keys() == {t.name for t in model.tensors}
    assert found["rope_freqs.weight"].data[-1] == pytest.approx(8.0)
    for tensor in model.tensors:
        assert np.array_equal(
            found[tensor.name].data.reshape(tensor.n_rows, -1), tensor.rows(0, tensor.n_rows)
        )


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rms_norm_eps": 1e-200}, r"\beps\b.*1e-200"),
        ({"rope_scaling": {**YARN, "truncate": False}}, "layer 0.*attention.*rope.*inv_freq"),
        ({"hidden_act": "gelu"}, "layer 0.*ffn.*activation.*'silu'.*'gelu'"),
    ],
)
def test_configs_that_gguf_has_no_words_for(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        to_gguf(folder_of("hf_llama2", tmp_path, change))


def test_a_spec_of_ones_own_needs_a_name_in_gguf(tmp_path: Path) -> None:
    golden = fixture("own_invented")
    checkpoint = formats.open(tiny.write(tmp_path, golden))
    spec = Path(__file__).parents[1] / "specs/data/invented.toml"
    (tmp_path / "pyflow.toml").write_text(spec.read_text())
    with pytest.raises(UnsupportedError, match=r"pyflow\.toml"):
        to_gguf(checkpoint)


def test_gguf_files_and_types_without_exact_floats_are_refused(tmp_path: Path) -> None:
    golden = fixture("hf_llama2")
    folder = tiny.write(tmp_path / "hub", golden)
    path = write(tmp_path / "m.gguf", to_gguf(formats.open(folder)))
    with pytest.raises(UnsupportedError, match="GGUF"):
        to_gguf(formats.open(path))
    values = {k: v.astype(np.int32) for k, v in tiny.weights(golden).items()}
    safetensors.numpy.save_file(values, folder / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"F32.*F16.*BF16.*I32"):
        to_gguf(formats.open(folder))


def test_rows_that_do_not_follow_one_another_are_refused(tmp_path: Path) -> None:
    write_pt(tmp_path / "x.pt", {"x": np.zeros((3, 4), np.float32).T}, "FloatStorage")
    checkpoint = formats.open(tmp_path / "x.pt")
    with pytest.raises(UnsupportedError, match=r"strides.*\(4, 16\)|strides"):
        arrays.stored_floats(checkpoint.native, checkpoint.native.tensor("x"))


@pytest.mark.filterwarnings("ignore::pyflow.errors.GenerationWarning")
def test_configs_from_anywhere_end_in_an_error_or_a_model(tmp_path: Path) -> None:
    golden = fixture("hf_llama3")
    tiny.write(tmp_path, golden)
    strange = [None, -1, 0, 1 << 40, 1e308, "x", [], {}, [1, "a"], True, float("nan")]
    for key in [*golden["config"], "bos_token_id", "eos_token_id", "head_dim"]:
        for value in strange:
            (tmp_path / "config.json").write_text(json.dumps(golden["config"] | {key: value}))
            try:
                to_gguf(formats.open(tmp_path))
            except PyflowError:
                continue
