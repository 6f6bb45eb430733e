"""Floats become blocks while they are loaded: the model is that of a file of such blocks.

The model is smollm2 with its weights in F32, and once more with its matrices in Q8_0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyflow.formats
import pytest
from numpy.typing import NDArray
from pyflow.quant import TARGETS
from pyflow.quant.convert import Options, convert
from pyflow.quant.plan import Recipe

from pyflow.cli import main
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.strategy import named
from pyflow.engine.loaded import plan
from pyflow.engine.model_files import ModelFiles
from pyflow.errors import UnsupportedError
from pyflow.model import load
from pyflow.sampling import SamplingParams

from .tiny_models import write_model

TOKENS = np.random.default_rng(5).integers(0, 49152, 24).tolist()
GREEDY = SamplingParams(temperature=0)
PROMPT = "The capital of France is"
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()[1000:2000]
# Loads the model of its arguments and prints bytes: how much more memory was taken at the most than
# before, what was planned for the weights, and what they take.
PROGRAM = """\
import sys
from pathlib import Path
from pyflow.model import load
from pyflow.engine.loaded import plan

def status(name):
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])

path, quantize = sys.argv[1:]
planned = plan(path, quantize=quantize)
load(path, n_threads=2, quantize=quantize).close()  # vocabulary, libraries
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
before = status("VmRSS")
with load(path, n_threads=2, quantize=quantize) as model:
    print(status("VmHWM") - before, planned.weights, model.stage.weight_bytes)
"""


def write_as(path: Path, source: Path, form: str) -> Path:
    """The model at source with its matrices in another format, as `pyflow quantize` writes it."""
    recipe = Recipe(form, pure=True, allow_requantize=True)
    convert(source, path, recipe, Options(n_threads=2))
    return path


@pytest.fixture(scope="module")
def floats(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    path = write_as(tmp_path_factory.mktemp("floats") / "f32.gguf", model_path("smollm2"), "F32")
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def blocks(floats: Path) -> Iterator[Path]:
    path = write_as(floats.with_name("q8_0.gguf"), floats, "Q8_0")
    yield path
    path.unlink()


def test_a_model_quantized_while_it_is_loaded_is_that_of_a_quantized_file(
    floats: Path, blocks: Path
) -> None:
    with load(blocks, n_threads=2) as stored, load(floats, quantize="q8_0", n_threads=2) as model:
        assert model.logits(TOKENS).tobytes() == stored.logits(TOKENS).tobytes()
        size = stored.stage.weight_bytes
        assert model.stage.weight_bytes == size == plan(floats, quantize="Q8_0").weights
        texts = [m.generate(PROMPT, n_predict=24, sampling=GREEDY).text for m in (stored, model)]
        assert texts[0] == texts[1]
        assert texts[0].startswith(" Paris")
        tokens = model.tokenizer.encode(TEXT)
        quantized = nats(model.logits(tokens), tokens)
    assert size < plan(floats).weights / 3.7
    with load(floats, n_threads=2) as model:
        assert quantized == pytest.approx(nats(model.logits(tokens), tokens), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("form", [name for name in TARGETS if name != "F32"])
def test_what_quantize_writes_is_also_loaded_into(form: str, tmp_path: Path) -> None:
    floats = write_model(tmp_path / "f32.gguf", n_layers=1, window=0, n_embd=256)
    blocks = write_as(tmp_path / "blocks.gguf", floats, form)
    tokens = list(range(40))
    with load(blocks, n_threads=1) as stored, load(floats, quantize=form, n_threads=1) as model:
        assert model.logits(tokens).tobytes() == stored.logits(tokens).tobytes()
        assert model.stage.weight_bytes == stored.stage.weight_bytes


@pytest.mark.parametrize("form", [name for name in TARGETS if TARGETS[name].block == 256])
def test_rows_that_are_no_whole_blocks_are_refused_by_name(form: str, tmp_path: Path) -> None:
    floats = write_model(tmp_path / "f32.gguf", n_layers=1, window=0)
    with pytest.raises(UnsupportedError, match=f"64 .* {form}"):
        plan(floats, quantize=form)


@pytest.mark.parametrize("form", ["Q4_K", "Q4_B32", "Q3H_K"])
def test_what_is_in_blocks_already_is_refused(form: str, tmp_path: Path) -> None:
    floats = write_model(tmp_path / "f32.gguf", n_layers=1, window=0, n_embd=256)
    blocks = write_as(tmp_path / "blocks.gguf", floats, form)
    with pytest.raises(UnsupportedError, match=f"F32, .* {form}"):
        plan(blocks, quantize="q3h_k")


def nats(logits: NDArray[np.float32], tokens: Sequence[int]) -> float:
    """What a token costs on average: the logarithm of the perplexity."""
    x = logits[:-1].astype(np.float64)
    x -= np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) + x.max(1, keepdims=True)
    return -float(np.mean(x[np.arange(len(x)), tokens[1:]]))


def test_stages_quantize_as_one_process_does(floats: Path, blocks: Path) -> None:
    with load(blocks, n_threads=1) as model:
        want = model.generate(PROMPT, n_predict=12, sampling=GREEDY).tokens
    strategy = named("iterative", 2, None)
    with in_threads(ModelFiles(floats, quantize="q8_0"), strategy=strategy) as model:
        assert model.generate(PROMPT, n_predict=12, sampling=GREEDY).tokens == want


def test_floats_pass_through_memory_in_pieces(floats: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(floats), "q8_0"],
        env=os.environ | {"MALLOC_TRIM_THRESHOLD_": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    peak, planned, taken = map(int, ran.stdout.split())
    assert planned == taken
    # Of the F32 file there is at most one matrix in memory, of which the embedding is the largest.
    largest = max(t.nbytes for t in pyflow.formats.open(floats).tensors)
    assert peak < taken + 1.25 * largest < floats.stat().st_size / 1.8


def test_the_option_tells_what_it_takes_and_generates(
    floats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(floats), "--memory", "--quantize", "Q8_0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == plan(floats, quantize="q8_0").weights
    options = ["-m", str(floats), "--quantize", "q8_0", "-t", "2"]
    assert main(["generate", *options, "--raw", "-p", PROMPT, "-n", "4", "--temp", "0"]) == 0
    assert "Paris" in capsys.readouterr().out
    assert main(["bench", *options, "-p", "8", "-n", "2", "-r", "1", "--json"]) == 0
    (result, *_) = json.loads(capsys.readouterr().out)
    assert result["quantize"] == "Q8_0"
    assert result["model_size"] < plan(floats, quantize="q8_0").weights * 1.01
