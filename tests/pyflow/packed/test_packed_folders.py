"""Folders of other programs whose matrices stay in few bytes: what they are in memory, what
products give, and that rows have the bits that they have alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec

from ..specs.quantized_folders import _ct, is_quantized, packing
from ..tiny_folders import write_folder

N_EMBD = 256
TOKENS = np.array([1, 2, 3, 200, 7, 90, 91, 17, 18], np.int32)
ROWS = np.arange(len(TOKENS), dtype=np.int32)
Pack = Callable[[packing.Floats, int], packing.Quantized]
Logits = NDArray[np.float32]


def _order(w: packing.Floats, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(w.shape[1])


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": True}
# Configuration, what makes a matrix (seed: of each another), its type, the type of products, and
# the bytes of a weight in memory at most.
CASES: dict[str, tuple[dict[str, Any], Pack, str, str, float]] = {
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda w, _: packing.fp8(w, (128, 128)),
        *("E4M3", "", 8.3 / 8),
    ),
    "fp8_rows": (
        {"quant_method": "fbgemm_fp8"},
        lambda w, _: packing.fp8(w, (1, w.shape[1]), name="weight_scale"),
        *("E4M3", "", 8.3 / 8),
    ),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        lambda w, _: packing.nf4(w, nested=True),
        *("NF4", "", 4.5 / 8),
    ),
    "int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        lambda w, _: packing.int8(w),
        *("F32", "Q8_0", 8.7 / 8),
    ),
    "ct_int8": (
        _ct("int-quantized", num_bits=8, strategy="channel"),
        lambda w, _: packing.ct_bytes(w, dtype="F32"),
        *("F32", "Q8_0", 8.7 / 8),
    ),
    "ct_int8_asym": (
        _ct("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        lambda w, _: packing.ct_bytes(w, dtype="F32", symmetric=False),
        *("F32", "Q8_B32", 9.2 / 8),
    ),
    "ct_rows": (
        _ct("pack-quantized", num_bits=4, strategy="channel"),
        lambda w, _: packing.ct_words(w, 4, w.shape[1], dtype="F32"),
        *("F32", "Q4_0", 4.7 / 8),
    ),
    "ct_nvfp4": (
        _ct("nvfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=16),
        lambda w, _: packing.ct_nvfp4(w),
        *("F32", "NVFP4", 4.7 / 8),
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        lambda w, _: packing.modelopt_fp4(w),
        *("F32", "NVFP4", 4.7 / 8),
    ),
    "order": (  # one for the matrices of an input
        _GPTQ,
        lambda w, _: packing.gptq(w, 4, 64, order=_order(w, w.shape[1])),
        *("F32", "Q4_0", 4.7 / 8),
    ),
    "orders": (
        _GPTQ | {"bits": 8},
        lambda w, seed: packing.gptq(w, 8, 64, order=_order(w, seed)),
        *("F32", "Q8_0", 8.7 / 8),
    ),
}
EXACT = [case for case, made in CASES.items() if not made[3]]
COMPACT = [case for case, made in CASES.items() if made[3]]


def folders(tmp_path: Path, case: str) -> tuple[formats.Checkpoint, formats.Checkpoint]:
    """A model in the case's form, and its values in F32."""
    (plain := tmp_path / "plain").mkdir()
    write_folder(plain, n_embd=N_EMBD)
    own, pack, dtype, compact, _ = CASES[case]
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for seed, (name, array) in enumerate(
        safetensors.numpy.load_file(plain / "model.safetensors").items()
    ):
        if not is_quantized(name):
            tensors[name] = values[name] = array
            continue
        made = pack(array.astype(np.float64), seed)
        stem = name.removesuffix("weight")
        tensors |= {stem + end: one for end, one in made.tensors.items()}
        types |= {stem + end: one for end, one in made.types.items()}
        values[name] = np.ascontiguousarray(made.values, np.float32)
    config = json.loads((plain / "config.json").read_text())
    packing.save(tmp_path / "packed", config | {"quantization_config": own}, tensors, types)
    safetensors.numpy.save_file(values, plain / "model.safetensors")
    packed = formats.open(tmp_path / "packed")
    for t in packed.tensors:
        if is_quantized(t.name):
            assert (t.dtype, t.compact) == (dtype, compact)
            np.testing.assert_array_equal(packed.array(t.name), values[t.name])
    return packed, formats.open(plain)


def stage_of(checkpoint: formats.Checkpoint, n_threads: int = 1) -> _core.Stage:
    spec = build_spec(checkpoint).stage()
    return _core.Stage(checkpoint.native, spec, _core.ThreadPool(n_threads, False))


def run(stage: _core.Stage, batches: list[slice], regime: str = "decode") -> Logits:
    context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
    found = [
        context.forward(TOKENS[b], ROWS[b], 0, np.arange(b.stop - b.start, dtype=np.int32), regime)
        for b in batches
    ]
    return np.concatenate(found)


WHOLE = [slice(0, len(TOKENS))]
ONE_BY_ONE = [slice(i, i + 1) for i in range(len(TOKENS))]


@pytest.mark.parametrize("case", EXACT)
def test_codes_of_floats_have_the_bits_of_f32(case: str, tmp_path: Path) -> None:
    packed, plain = (stage_of(of) for of in folders(tmp_path, case))
    for regime in ("prefill", "decode"):
        assert run(packed, WHOLE, regime).tobytes() == run(plain, WHOLE, regime).tobytes()


@pytest.mark.parametrize("case", COMPACT)
def test_products_with_factors_and_orders_are_close_to_f32(case: str, tmp_path: Path) -> None:
    packed, plain = (stage_of(of) for of in folders(tmp_path, case))
    for regime in ("prefill", "decode"):
        found, want = (run(of, WHOLE, regime) for of in (packed, plain))
        errors = np.abs(found - want).max(1) / np.abs(want).max(1)
        assert np.median(errors) <= 0.04  # of Q8_0 it is 0.035
        assert errors.max() <= 0.12
        assert not np.array_equal(found, want)


@pytest.mark.parametrize("case", CASES)
def test_rows_have_the_bits_that_they_have_alone(case: str, tmp_path: Path) -> None:
    packed, plain = folders(tmp_path, case)
    stages = [stage_of(packed, n) for n in (1, 3)]
    want = run(stages[0], ONE_BY_ONE)
    for stage in stages:
        for batches in (WHOLE, [slice(0, 4), slice(4, len(TOKENS))], ONE_BY_ONE):
            assert run(stage, batches).tobytes() == want.tobytes()
    n_others = 4 * 320 * N_EMBD + 64 * N_EMBD  # the embedding, and norms
    n_weights = sum(int(np.prod(t.shape)) for t in plain.tensors if is_quantized(t.name))
    assert stages[0].weight_bytes - n_others <= CASES[case][4] * n_weights


@pytest.mark.parametrize("case", ["order", "orders", "ct_nvfp4", "ct_int8_asym", "fp8", "nf4"])
def test_members_that_share_a_stage_have_the_same_bits(case: str, tmp_path: Path) -> None:
    packed, _ = folders(tmp_path, case)
    want = run(stage_of(packed), WHOLE)
    spec, links = build_spec(packed).stage(), _core.Link.threads(2)

    def member(m: int) -> Logits:
        pool = _core.ThreadPool(1, False)
        stage = _core.Stage(packed.native, spec, pool, member=(m, 2))
        context = _core.Context(
            stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16", link=links[m]
        )
        return context.forward(TOKENS, ROWS, 0, ROWS, "decode")

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(member, range(2)):
            assert found.tobytes() == want.tobytes()
