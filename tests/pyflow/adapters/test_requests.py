"""Requests choose adapters, as of llama.cpp's server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
