"""Adapters give what PEFT gives, and each text its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pyflow
from pyflow.adapters import Given, open_adapter
from pyflow.cli import main
from pyflow.errors import FormatError, PyflowError, ShapeError, UnsupportedError
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, speculator

from ..specs import tiny
from . import batches, tiny_adapters

GOLDEN = Path(__file__).parents[2] / "golden"
NAMES = sorted(path.stem for path in (GOLDEN / "adapters").glob("*.json"))
GREEDY = SamplingParams(temperature=0, n_logprobs=2)


def fixture(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of an adapter and of its model."""
    adapter = json.loads((GOLDEN / f"adapters/{name}.json").read_text())
    return adapter, json.loads((GOLDEN / f"families/{adapter['family']}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_peft(name: str, tmp_path: Path) -> None:
    adapter, family = fixture(name)
    base = tiny.write_folder(tmp_path / "base", family)
    paths = tiny_adapters.write_all(tmp_path, adapter)
    with pyflow.load(base, n_threads=2, adapters=paths) as model:
        found = model.logits(family["tokens"])[family["rows"]]
        expected = np.array(adapter["logits"])
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        plain = np.array(family["logits"])
        assert np.abs(found - plain).max() > 0.02 * np.abs(plain).max()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyflow.Model]:
    """With three adapters, of which only the first applies by default."""
    folder = tmp_path_factory.mktemp("adapters")
    adapter, family = fixture("llama")
    base = tiny.write_folder(folder / "base", family)
    paths = [
        tiny_adapters.write(folder / name, adapter | {"seed": seed})
        for seed, name in enumerate(("first", "second", "third"))
    ]
    given = [paths[0], (paths[1], 0.0), (paths[2], 0)]
    with pyflow.load(base, n_threads=2, adapters=given) as model:
        yield model


def test_beside_blocks_it_is_near_the_merged_model(tmp_path: Path) -> None:
    """Q8_0 weights with an adapter lose no more than their sum does that is rounded to Q8_0."""
    adapter, family = fixture("llama")
    merged = dict(tiny.weights(family))
    given = tiny_adapters.tensors(adapter)
    path = tiny_adapters.write(tmp_path / "adapter", adapter)
    for module, low in open_adapter(path).matrices.items():
        merged[f"{module}.weight"] += np.float32(low.scale) * (given[low.b] @ given[low.a])
    import safetensors.numpy

    base = tiny.write_folder(tmp_path / "base", family)
    other = tiny.write_folder(tmp_path / "merged", family)
    safetensors.numpy.save_file(merged, other / "model.safetensors", metadata={"format": "pt"})
    logits = []
    for folder, quantize, adapters in (
        (other, None, []),
        (other, "q8_0", []),
        (base, "q8_0", [path]),
    ):
        with pyflow.load(folder, n_threads=1, quantize=quantize, adapters=adapters) as model:
            logits.append(model.logits(family["tokens"]))
    merged_error, error = (np.square(each - logits[0]).mean() for each in logits[1:])
    assert error <= 1.5 * merged_error


CHOICES: list[dict[str, float]] = [
    {},
    {"first": 1.0},
    {"second": 1.0},
    {"first": 0.5, "third": -2.0},
]


def test_each_text_of_a_batch_has_the_bits_that_it_has_alone(llama: pyflow.Model) -> None:
    tokens = fixture("llama")[1]["tokens"]
    alone = batches.alone(llama, tokens, CHOICES)
    assert (alone[1] == llama.logits(tokens)).all()  # the default
    assert len({logits.tobytes() for logits in alone}) == len(CHOICES)
    batches.check(llama, tokens, CHOICES, alone)


def test_texts_are_the_same_with_drafts_and_by_one_thread(llama: pyflow.Model) -> None:
    prompt = [5, 6, 7, 5, 6, 7, 5, 6]
    with speculator(llama, Speculation(method="lookup")) as drafts:
        for choice in CHOICES:
            plain = llama.generate(prompt, n_predict=16, sampling=GREEDY, adapters=choice)
            drafted = llama.generate(
                prompt, n_predict=16, sampling=GREEDY, adapters=choice, speculator=drafts
            )
            assert drafted.tokens == plain.tokens
    with pyflow.load(llama.path, n_threads=1, adapters=[*llama.adapters.paths.values()]) as one:  # type: ignore[union-attr]
        for choice in CHOICES:
            found = one.generate(prompt, n_predict=16, sampling=GREEDY, adapters=choice)
            expected = llama.generate(prompt, n_predict=16, sampling=GREEDY, adapters=choice)
            assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def test_cells_are_shared_among_texts_of_one_choice_alone(llama: pyflow.Model) -> None:
    from pyflow.batch.local_runner import LocalRunner
    from pyflow.generate.any_model import Run, checked

    prompt = [5, 6, 7, 8, 9, 10]
    expected = [
        llama.generate(prompt, n_predict=6, sampling=GREEDY, adapters=choice).logprobs
        for choice in CHOICES
    ]
    with LocalRunner(llama.context(128, n_seq_max=4), None) as runner:
        for _ in range(2):
            for choice, logprobs in zip(CHOICES, expected, strict=True):
                wish = checked(
                    llama, prompt, {"n_predict": 6, "sampling": GREEDY, "adapters": choice}
                )
                (done,) = wish.stream(llama, Run(runner, [32], reuse=True)).read()
                assert done.logprobs == logprobs


def test_adapters_in_gguf_stand_beside_models_in_gguf(tmp_path: Path) -> None:
    given = json.loads((GOLDEN / "families/gguf_llama3.json").read_text())
    base = tiny.write_gguf(tmp_path / "base.gguf", given)
    names = ("blk.0.attn_q.weight", "blk.1.ffn_down.weight")
    lows = {}
    for i, name in enumerate(names):
        rows, columns = given["tensors"][name]
        lows[f"{name}.lora_a"] = tiny.weight(i, "a", [3, columns], 1.0)
        lows[f"{name}.lora_b"] = tiny.weight(i, "b", [rows, 3], 1.0)
    merged = dict(tiny.weights(given))
    for name in names:
        merged[name] += np.float32(2.0) * (lows[f"{name}.lora_b"] @ lows[f"{name}.lora_a"])
    other = tiny.write_gguf(tmp_path / "merged.gguf", given, merged)
    path = tiny_adapters.write_gguf(tmp_path / "adapter.gguf", "llama", lows, 6.0)
    with (
        pyflow.load(base, n_threads=1, adapters=[path]) as model,
        pyflow.load(other, n_threads=1) as whole,
    ):
        found, expected = model.logits(given["tokens"]), whole.logits(given["tokens"])
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        assert model.adapters is not None
        assert model.adapters.names == ["adapter"]
    for keys, error, words in (
        ({"adapter.type": "ia3"}, UnsupportedError, "lora"),
        ({"general.type": "model"}, FormatError, "-m"),
    ):
        wrong = tiny_adapters.write_gguf(tmp_path / "wrong.gguf", "llama", lows, 6.0, **keys)
        with pytest.raises(error, match=words):
            open_adapter(wrong)
    foreign = tiny_adapters.write_gguf(tmp_path / "foreign.gguf", "qwen2", lows, 6.0)
    with pytest.raises(UnsupportedError, match="expected an adapter for llama, found one for qwen"):
        pyflow.load(base, adapters=[foreign])


def both_forms(
    base: Path, adapters: Sequence[Given], tokens: list[int]
) -> list[NDArray[np.float32]]:
    """Logits of a model in a folder, and of the same in GGUF, with an adapter of PEFT."""
    other = base.with_suffix(".gguf")
    assert main(["quantize", str(base), str(other), "--type", "F32"]) == 0
    logits = []
    for path in (base, other):
        with pyflow.load(path, n_threads=1, adapters=adapters) as model:
            logits.append(model.logits(tokens))
    return logits


# Others cannot be written as GGUF, for reasons of their models.
IN_GGUF = [
    "dora_fused",
    "dora_transposed",
    "embedding",
    "fused",
    "gemma4_moe",
    "gpt_oss",
    "llama",
    "several",
    "transposed",
]


@pytest.mark.parametrize("name", IN_GGUF)
def test_adapters_of_peft_stand_beside_models_in_gguf(name: str, tmp_path: Path) -> None:
    adapter, family = fixture(name)
    base = tiny.write_folder(tmp_path / "base", family)
    paths = tiny_adapters.write_all(tmp_path, adapter)
    folder, file = both_forms(base, paths, family["tokens"])
    assert np.abs(folder - file).max() <= 1e-4 * np.abs(folder).max()


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("cohere", True),
        ("ernie4_5", True),
        ("glm4", True),
        ("mixtral", True),
        ("smollm3", True),
        ("qwen3", True),
        ("phi2", True),
        ("granite", True),
        ("bloom", False),  # whose heads' queries, keys and values lie together in folders
        ("gpt_neox", False),
        ("falcon40b", False),
    ],
)
def test_modules_of_families_find_their_tensors_in_gguf(
    name: str, goes: bool, tmp_path: Path
) -> None:
    family = json.loads((GOLDEN / f"families/hf_{name}.json").read_text())
    wanted = ("q_proj", "k_proj", "o_proj", "down_proj", "query_key_value", "fc1", "gate_up_proj")
    shapes = {}
    for tensor, shape in family["tensors"].items():
        module = tensor.removesuffix(".weight")
        if module != tensor and len(shape) == 2 and module.endswith(wanted):
            shapes[f"base_model.model.{module}.lora_A.weight"] = [3, shape[1]]
            shapes[f"base_model.model.{module}.lora_B.weight"] = [shape[0], 3]
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    adapter = {"seed": 3, "config": config, "tensors": shapes}
    base = tiny.write_folder(tmp_path / "base", family)
    path = tiny_adapters.write(tmp_path / "adapter", adapter)
    if not goes:
        with pytest.raises(UnsupportedError, match="take the adapter in GGUF"):
            both_forms(base, [path], family["tokens"])
        return
    folder, file = both_forms(base, [path], family["tokens"])
    assert np.abs(folder - file).max() <= 1e-4 * np.abs(folder).max()


def _changed(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        found = next(key for key in tensors if name in key)
        tensors[found] = list(shape)

    return change


def _renamed(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if old in key]:
            tensors[key.replace(old, new)] = tensors.pop(key)

    return change


def _doubled(name: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if name in key]:
            tensors[key.replace(name, f"{name}.other")] = tensors[key]

    return change


@pytest.mark.parametrize(
    ("config", "change", "error", "words"),
    [
        ({"use_dora": True}, None, FormatError, "lora_magnitude_vector"),
        ({"alpha_pattern": {"q_proj": 1e7}}, None, FormatError, "lora_alpha"),
        ({"bias": "all"}, None, UnsupportedError, "bias"),
        ({"modules_to_save": ["lm_head"]}, None, UnsupportedError, "modules_to_save"),
        ({"peft_type": "IA3"}, None, UnsupportedError, "LORA"),
        ({"r": 0}, None, FormatError, "r of 1"),
        ({"r": "4"}, None, FormatError, "adapter_config"),
        ({"lora_alpha": 1e400}, None, FormatError, "lora_alpha|too large|JSON"),
        ({"rank_pattern": {}}, None, ShapeError, "rank 4"),
        ({"rank_pattern": {"(": 3}}, None, FormatError, "pattern"),
        ({"rank_pattern": {"((a+)+)+!": 3}}, None, UnsupportedError, "rank_pattern"),
        ({"alpha_pattern": {"(.|.)" * 30 + "Z": 8}}, None, UnsupportedError, "alpha_pattern"),
        ({"use_future_thing": True}, None, UnsupportedError, "use_future_thing"),
        ({"init_lora_weights": "pissa"}, None, UnsupportedError, "init_lora_weights"),
        ({}, _doubled("o_proj.lora_A"), FormatError, "one adapter"),
        ({}, _changed("o_proj.lora_A", (5, 48)), ShapeError, "rank"),
        ({}, _changed("o_proj.lora_A", (4, 7)), ShapeError, "expected"),
        ({}, _changed("o_proj.lora_B", (8, 4)), ShapeError, "expected"),
        ({}, _changed("o_proj.lora_B", (48,)), ShapeError, "rank"),
        ({}, _renamed("o_proj.lora_A", "z_proj.lora_A"), FormatError, "lora_A, lora_B"),
        ({}, _renamed("o_proj", "z_proj"), UnsupportedError, "z_proj"),
        ({}, _renamed("self_attn.o_proj", "input_layernorm"), ShapeError, "expected"),
        ({}, _renamed("o_proj.lora_A", "o_proj.other"), UnsupportedError, "o_proj.other"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(
    config: dict[str, object],
    change: Callable[[dict[str, Any]], None] | None,
    error: type[PyflowError],
    words: str,
    tmp_path: Path,
) -> None:
    adapter, family = fixture("llama")
    if change is not None:
        change(adapter["tensors"])
    base = tiny.write_folder(tmp_path / "base", family)
    path = tiny_adapters.write(tmp_path / "adapter", adapter, **config)
    with pytest.raises(error, match=words) as info:
        pyflow.load(base, adapters=[path])
    assert type(info.value) is error


def test_what_is_no_adapter_is_refused(llama: pyflow.Model, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"adapter_config.json"):
        pyflow.load(llama.path, adapters=[llama.path])
    with pytest.raises(FormatError):
        pyflow.load(llama.path, adapters=[tmp_path / "none"])
    first = llama.adapters.paths["first"]  # type: ignore[union-attr]
    with pytest.raises(FormatError, match="give its folder"):
        pyflow.load(llama.path, adapters=[first / "adapter_model.safetensors"])
    with pytest.raises(PyflowError, match="twice"):
        pyflow.load(llama.path, adapters=[first, first])
    for wrong in (["none"], "first", {"first": float("nan")}, {"first": "1"}, 3):
        with pytest.raises(PyflowError, match="adapters"):
            llama.generate([5], n_predict=1, adapters=wrong)  # type: ignore[arg-type]


def test_the_command_line_and_sessions_know_them(
    llama: pyflow.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert llama.adapters is not None
    first, second = (str(llama.adapters.paths[name]) for name in ("first", "second"))
    given = ["generate", "-m", str(llama.path), "-p", "x", "-n", "1"]
    for lora, words in (
        (f"{first}=much", "expected PATH or PATH=FACTOR"),
        (f"{first}=inf", "finite factor"),
        (str(tmp_path / "none"), "found nothing there"),
        ("", "found nothing there"),
    ):
        assert main([*given, "--lora", lora]) != 0
        assert words in capsys.readouterr().err
    assert main([*given, "--lora", first, "--gpu-layers", "1"]) == 2
    needs = []
    for lora in ([], ["--lora", first]):
        assert main(["inspect", str(llama.path), "--memory", "-c", "64", "--json", *lora]) == 0
        needs.append(json.loads(capsys.readouterr().out))
    held = sum(path.stat().st_size for path in Path(first).glob("*.safetensors"))
    assert needs[1]["total"] - needs[0]["total"] == needs[1]["adapters"] > 0.9 * held
    # Cells of a session are those of its adapters and factors.
    marks = set()
    for adapters in ([], [first], [(first, 0.5)], [second], [(first, 0.0)]):
        with pyflow.load(llama.path, n_threads=1, adapters=adapters) as model:
            marks.add(model.fingerprint)
    assert len(marks) == 4  # a factor of 0 changes nothing
