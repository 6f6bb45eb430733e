"""Requests choose adapters, as of llama.cpp's server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.numpy

import pyflow
from pyflow import formats
from pyflow.cli import main
from pyflow.sampling import SamplingParams
from pyflow.serve.settings import Settings

from .. import tiny_models
from ..serve.conftest import Server
from ..specs import tiny
from . import tiny_adapters

PATH = "/v1/completions"


def written(folder: Path) -> tuple[Path, list[Path]]:
    """A model, and two adapters for it."""
    base = tiny_models.write_model(folder / "tiny.gguf", n_layers=2, window=0, has_tokenizer=True)
    lows = {}
    for tensor in formats.open(base).tensors:
        if "attn_q" in tensor.name or "ffn_down" in tensor.name:
            rows, columns = tensor.shape
            lows[f"{tensor.name}.lora_a"] = tiny.weight(1, tensor.name, [4, columns], 1.0)
            lows[f"{tensor.name}.lora_b"] = tiny.weight(2, tensor.name, [rows, 4], 1.0)
    paths = [
        tiny_adapters.write_gguf(folder / f"{name}.gguf", "llama", lows, alpha)
        for name, alpha in (("one", 4.0), ("two", -8.0))
    ]
    return base, paths


def test_each_request_has_the_adapters_that_it_names(tmp_path: Path) -> None:
    base, paths = written(tmp_path)
    greedy = {"prompt": [5, 6, 7, 8], "max_tokens": 12, "temperature": 0}
    with (
        pyflow.load(base, n_threads=1) as plain,
        pyflow.load(base, n_threads=1, adapters=[(paths[0], 0.5), (paths[1], 0)]) as model,
    ):
        server = Server({"tiny": model, "plain": plain}, Settings(port=0, n_parallel=4, n_ctx=128))
        try:
            assert server.get("/lora-adapters") == [
                {"id": 0, "name": "one", "scale": 0.5},
                {"id": 1, "name": "two", "scale": 0.0},
            ]
            for lora, choice in (
                (None, None),
                ([], {}),
                ([{"id": 0}], {"one": 1.0}),
                ([{"id": "two", "scale": 0.25}, {"id": 0}], {"one": 1.0, "two": 0.25}),
            ):
                options = {} if choice is None else {"adapters": choice}
                alone = model.generate(
                    [5, 6, 7, 8], n_predict=12, sampling=SamplingParams(temperature=0), **options
                )
                for _ in range(2):  # the second finds cells of the first
                    found = server.post(PATH, **greedy, lora=lora)
                    assert found["choices"][0]["text"] == alone.text
            for wrong in ([{"id": 2}], [{"id": "none"}], [{"id": 0}, {"id": "one"}]):
                status, error = server.error(PATH, **greedy, lora=wrong)
                assert (status, error["param"]) == (400, "lora")
            assert server.error(PATH, **greedy, lora=[{"id": 0, "scale": 1e300}])[0] == 400
            assert server.get("/lora-adapters?model=plain") == []
            assert server.error(PATH, **greedy, model="plain", lora=[{"id": 0}])[0] == 400
        finally:
            server.stop()


def with_magnitudes(base: Path, folder: Path) -> Path:
    """An adapter of PEFT beside a model in GGUF; a row of zeros remains at a factor of -1."""
    q = next(t for t in formats.open(base).tensors if t.name == "blk.0.attn_q.weight")
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {
        f"{module}.lora_A.weight": [1, q.shape[1]],
        f"{module}.lora_B.weight": [q.shape[0], 1],
        f"{module}.lora_magnitude_vector": [q.shape[0]],
    }
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "use_dora": True}
    adapter = {"seed": 1, "config": config, "tensors": shapes}
    path = tiny_adapters.write(folder, adapter)
    tensors = tiny_adapters.tensors(adapter)
    tensors[f"{module}.lora_A.weight"][0] = formats.open(base).array(q.name)[0]
    tensors[f"{module}.lora_B.weight"][0] = 1
    safetensors.numpy.save_file(tensors, path / "adapter_model.safetensors")
    return path


def test_requests_give_factors_to_magnitudes(tmp_path: Path) -> None:
    base, paths = written(tmp_path)
    path = with_magnitudes(base, tmp_path / "dora")
    greedy = {"prompt": [5, 6, 7, 8], "max_tokens": 12, "temperature": 0}
    with pyflow.load(base, n_threads=1, adapters=[(paths[0], 0), (path, 0)]) as model:
        server = Server({"tiny": model}, Settings(port=0, n_parallel=4, n_ctx=128))
        try:
            texts = set()
            for factors in ({}, {"dora": 1.0}, {"dora": 8.0}, {"one": 1.0, "dora": 0.5}):
                sampling = SamplingParams(temperature=0)
                alone = model.generate(
                    [5, 6, 7, 8], n_predict=12, sampling=sampling, adapters=factors
                )
                lora = [{"id": name, "scale": factor} for name, factor in factors.items()]
                for _ in range(2):  # the second finds cells of the first
                    found = server.post(PATH, **greedy, lora=lora)["choices"][0]["text"]
                    assert found == alone.text
                texts.add(alone.text)
            assert len(texts) > 1
            status, error = server.error(PATH, **greedy, lora=[{"id": "dora", "scale": -1}])
            assert (status, error["param"]) == (400, "lora")
            assert "row 0" in error["message"]
        finally:
            server.stop()


def test_commands_write_as_the_model_with_its_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, paths = written(tmp_path)
    with pyflow.load(base, n_threads=1, adapters=[(paths[0], 0.5)]) as model:
        alone = model.generate("abc", n_predict=12, sampling=SamplingParams(temperature=0))
    given = ["-m", str(base), "-t", "1", "--lora", f"{paths[0]}=0.5"]
    writing = ["-p", "abc", "--raw", "-n", "12", "--temp", "0", "--json"]
    assert main(["generate", *given, *writing]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == alone.text
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh " * 60)
    found = []
    for options in ([], ["--lora", str(paths[0])]):
        command = ["eval", "ppl", "-m", str(base), "-t", "1", "-f", str(text), "-c", "32"]
        assert main([*command, "--json", *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] != found[1]
