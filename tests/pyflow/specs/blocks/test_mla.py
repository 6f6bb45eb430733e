"""Latent attention: what cells take, files of both kinds, the same bits however a text is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec, describe

from .. import tiny
from ..test_families import fixture, logits

POOL = _core.ThreadPool(2, False)
RANK, NOPE, VALUES, HEADS = 32, 24, 48, 4
OLD = fixture("gguf_deepseek2_old")["metadata"]
NEW = {
    "metadata": OLD
    | {
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": 40,
        "deepseek2.attention.value_length": 32,
        "deepseek2.attention.key_length_mla": 32,
        "deepseek2.attention.value_length_mla": 48,
    }
}
"""What new files say."""


def context(path: Path, cache_type: str = "f16", pack_as: str | None = None) -> _core.Context:
    checkpoint = formats.open(path)
    stage = _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), POOL, pack_as=pack_as)
    return _core.Context(stage, n_ctx=64, n_seq_max=2, n_batch=64, cache_type=cache_type)


def run(of: _core.Context, tokens: list[int], cuts: list[int]) -> NDArray[np.float32]:
    parts = []
    for first, last in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        at = np.arange(first, last, dtype=np.int32)
        rows = np.arange(last - first, dtype=np.int32)
        parts.append(of.forward(np.array(tokens[first:last], np.int32), at, 0, rows, "prefill"))
    return np.concatenate(parts)


@pytest.mark.parametrize(("cache_type", "nbytes"), [("f16", 2 * 48), ("q8_0", 64 // 32 * 34)])
def test_cells_hold_latents_alone_and_cuts_change_no_bit(
    cache_type: str, nbytes: int, tmp_path: Path
) -> None:
    golden = fixture("hf_deepseek3")
    path, tokens = tiny.write(tmp_path, golden), golden["tokens"]
    whole = context(path, cache_type)
    want = run(whole, tokens, [])
    for cuts in ([1, 2, 5, 22], list(range(1, 40))):
        assert run(context(path, cache_type), tokens, cuts).tobytes() == want.tobytes()
    # 32 + 8 values, filled up to whole vectors, or blocks.
    assert all(whole.read_cells(i, 0, 3, 10).nbytes == 7 * nbytes for i in range(3))


def split(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Tensors of an old file as new ones have them."""
    found = {}
    for name, values in tensors.items():
        if "attn_kv_b" not in name:
            found[name] = values
            continue
        heads = values.reshape(HEADS, NOPE + VALUES, RANK)
        found[name.replace("kv_b", "k_b")] = heads[:, :NOPE].transpose(0, 2, 1)
        found[name.replace("kv_b", "v_b")] = heads[:, NOPE:]
    return found


def test_old_and_new_files_of_a_model_give_the_same_bits(tmp_path: Path) -> None:
    golden = fixture("gguf_deepseek2_old")
    old = formats.open(tiny.write(tmp_path / "old", golden))
    path = tiny.write_gguf(tmp_path / "new.gguf", golden | NEW, split(tiny.weights(golden)))
    new = formats.open(path)
    tokens = golden["tokens"]
    want = logits(old, tokens, 64, "prefill")
    assert logits(new, tokens, 64, "prefill").tobytes() == want.tobytes()


def test_keys_across_blocks_are_read_as_they_are(tmp_path: Path) -> None:
    """Of a quantized kv_b the keys' part is turned: its very values, in F32."""
    golden = fixture("gguf_deepseek2_old")
    quantized, apart = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for name, values in tiny.weights(golden).items():
        if "attn_kv_b" not in name:
            quantized[name] = apart[name] = values
            continue
        quantized[name] = blocks = _core.quantize("Q8_0", values)
        rounded = _core.dequantize("Q8_0", blocks, values.shape)
        key, value = split({name: rounded}).keys()
        apart[key] = split({name: rounded})[key]
        apart[value] = blocks.reshape(HEADS, NOPE + VALUES, -1)[:, NOPE:]
    one = formats.open(tiny.write_gguf(tmp_path / "one.gguf", golden, quantized))
    other = formats.open(tiny.write_gguf(tmp_path / "two.gguf", golden | NEW, apart))
    want = logits(other, golden["tokens"], 64, "prefill")
    assert logits(one, golden["tokens"], 64, "prefill").tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["hf_deepseek3", "hf_glm4moe"])
def test_a_layer_that_predicts_a_later_token_is_left_out(name: str, tmp_path: Path) -> None:
    golden = fixture(name)
    spec = describe(formats.open(tiny.write(tmp_path, golden))).spec
    later = {"eh_proj.weight": [64, 128], "self_attn.q_a_proj.weight": [40, 64]}
    golden["tensors"] |= {f"model.layers.3.{part}": shape for part, shape in later.items()}
    more = describe(formats.open(tiny.write(tmp_path, golden)))
    assert more.spec.layers == spec.layers
    assert more.built.ignored == {f"model.layers.3.{part}" for part in later}
