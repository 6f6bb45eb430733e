"""Models in another basis or another order give the same logits, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pyflow.quant.convert import convert
from pyflow.quant.plan import Recipe
from pyflow.quant.weights import ROTATION_SEED, SHUFFLE_SEED

import pyflow
from pyflow import formats
from pyflow.errors import UnsupportedError

from ...pyflow.specs import tiny
from ...pyflow.specs.test_families import NAMES, TOLERANCE, fixture, logits

Bench = Callable[[str], ModuleType]

# By what they are refused: norms with a mean, norms on a branch.
REFUSED = {
    **dict.fromkeys(
        (
            *("gguf_bloom", "gguf_falcon40b", "gguf_falcon7b", "gguf_gpt2", "gguf_gptneox"),
            *("gguf_gptneox_sequential", "gguf_stablelm", "gguf_stablelm2_12b"),
            *("gguf_starcoder2", "gguf_cohere", "gguf_cohere2", "gguf_phi2"),
        ),
        "root mean square",
    ),
    **dict.fromkeys(
        ("gguf_gemma2", "gguf_gemma3", "gguf_glm4", "gguf_glm4moe", "gguf_seed_oss"),
        "post_attention_norm",
    ),
    "gguf_gpt_oss": "attn_sinks",
    "gguf_gemma3n": "altup_proj",
    "gguf_gemma4": "per_layer_token_embd",
    "gguf_gemma4_moe": "post_attention_norm|ffn_gate_inp.scale",
    **dict.fromkeys(("gguf_deepseek2_old", "gguf_deepseek3"), r"attn_(q|kv)_a"),
    **dict.fromkeys(("gguf_lfm2", "gguf_lfm2moe"), "output_norm"),
    **dict.fromkeys(("gguf_olmo2", "gguf_olmo3", "gguf_exaone4"), "attn_q.weight"),
}
GGUF = [name for name in NAMES if name.startswith("gguf_")]
UNKNOWN = {"gguf_gemma3n", "gguf_gemma4", "gguf_gemma4_moe"}
"""With tensors whose channels no change knows."""


@pytest.mark.parametrize("n", [1, 7, 48, 64, 576])
def test_the_matrix_is_orthogonal_and_mixes_everything(bench: Bench, n: int) -> None:
    orthogonal = bench("requantize/rotate").orthogonal
    r = orthogonal(n, 5)
    np.testing.assert_allclose(r @ r.T, np.eye(n), atol=1e-13)
    assert (r != 0).all()
    np.testing.assert_array_equal(r, orthogonal(n, 5))
    assert n == 1 or not np.allclose(r, orthogonal(n, 6))


KEYS = {"rotate": ROTATION_SEED, "shuffle": SHUFFLE_SEED}


@pytest.fixture
def changes(bench: Bench) -> dict[str, Callable[..., None]]:
    return {name: getattr(bench(f"requantize/{name}"), name) for name in KEYS}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, "rotate") for name in GGUF if name not in REFUSED),
        *((name, "shuffle") for name in GGUF if name not in UNKNOWN),
    ],
)
def test_logits_stay_those_of_the_other_program(
    changes: dict[str, Callable[..., None]], name: str, change: str, tmp_path: Path
) -> None:
    golden = fixture(name)
    source = tiny.write(tmp_path, golden)
    target = tmp_path / "changed.gguf"
    changes[change](source, target, 7)
    before, after = formats.open(source), formats.open(target)
    assert after.metadata[KEYS[change]] == 7
    for record in before.tensors:
        if len(record.shape) > 1 and "norm" not in record.name:
            old, new = before.array(record.name), after.array(record.name)
            assert np.mean(np.isclose(old, new)) < 0.5
    got = logits(after, golden["tokens"], golden.get("n_ctx", 64), "prefill")[golden["rows"]]
    want = np.array(golden["logits"])
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_models_that_cannot_be_rotated_are_refused(
    changes: dict[str, Callable[..., None]], name: str, tmp_path: Path
) -> None:
    source = tiny.write(tmp_path, fixture(name))
    with pytest.raises(UnsupportedError, match=REFUSED[name]):
        changes["rotate"](source, tmp_path / "rotated.gguf", 7)
    assert not (tmp_path / "rotated.gguf").exists()


@pytest.mark.accept
@pytest.mark.parametrize("name", ["smollm2", "qwen2.5-coder-1.5b"])
def test_logits_of_real_models_stay_the_same_in_f32(
    changes: dict[str, Callable[..., None]],
    name: str,
    model_path: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    def of(path: Path) -> np.ndarray:
        with pyflow.load(path) as model:
            text = "The quick brown fox jumps over the lazy dog, and it was a sunny day in May."
            return model.logits(model.tokenizer.encode(text))

    convert(model_path(name), tmp_path / "f32.gguf", Recipe("F32", allow_requantize=True))
    want = of(tmp_path / "f32.gguf")
    (tmp_path / "f32.gguf").unlink()
    for write in changes.values():
        write(model_path(name), tmp_path / "changed.gguf", 1)
        assert np.abs(of(tmp_path / "changed.gguf") - want).max() <= 1e-3 * np.abs(want).max()
