"""`pyflow quantize` on a real model: what it prints, what it refuses, and that the result runs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyflow.quant import mixes
from pyflow.quant.measure.perplexity import perplexity

import pyflow
from pyflow import formats
from pyflow.cli import main

from ...tiny_models import write_model
from .quantizing import interrupted

pytestmark = pytest.mark.model
Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[4]
# A Python that can import llama_cpp.
PEER = os.environ.get("PYFLOW_PEER_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def f16(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """smollm2 in F16."""
    path = tmp_path_factory.mktemp("quantize") / "f16.gguf"
    source = str(model_path("smollm2"))
    assert main(["quantize", source, str(path), "--type", "F16", "--allow-requantize"]) == 0
    return path


@pytest.fixture(scope="module")
def q4_k_m(f16: Path) -> Path:
    path = f16.parent / "q4_k_m.gguf"
    assert main(["quantize", str(f16), str(path), "--type", "q4_k_m"]) == 0
    return path


def test_the_result_runs_and_says_nearly_the_same(f16: Path, q4_k_m: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 60
    with pyflow.load(f16) as base, pyflow.load(q4_k_m) as quantized:
        expected = perplexity(base, text, n_ctx=256, n_chunks=2).ppl
        assert perplexity(quantized, text, n_ctx=256, n_chunks=2).ppl == pytest.approx(
            expected, rel=0.05
        )


def test_three_and_a_half_bits_run(run: Run, f16: Path, tmp_path: Path) -> None:
    target = tmp_path / "q3h.gguf"
    code, out, _ = run("quantize", str(f16), str(target), "--type", "q3h_b64", "--pure", "--json")
    figures = json.loads(out)
    assert code == 0
    assert figures["roles"]["ffn_up"]["bits_per_weight"] == 4
    assert figures["roles"]["token_embd"]["types"] == {"Q3H_B64": 1}
    text = "The quick brown fox jumps over the lazy dog. " * 60
    with pyflow.load(target) as model:
        assert perplexity(model, text, n_ctx=256, n_chunks=2).ppl < 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantize") / "tiny.gguf"
    write_model(path, n_layers=3, window=0, has_tokenizer=True)
    return path


def test_a_table_and_what_was_not_as_asked_are_told(run: Run, tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "q8.gguf"
    override = "blk.0.attn_v=q4_1"
    code, out, err = run(
        *("quantize", str(tiny), str(target), "--type", "q6_k", "--tensor-type", override)
    )
    assert code == 0
    assert "Q8_0 instead of Q6_K: rows of 64 " in err
    lines = out.splitlines()
    assert lines[0].split("|")[1].strip() == "role"
    attn_v = next(line for line in lines if line.startswith("| attn_v"))
    assert "1 Q4_1, 2 Q8_0" in attn_v
    assert lines[-1].startswith(f"{target}: {target.stat().st_size:,} bytes in ")


def test_json_has_the_figures(run: Run, tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "q8.gguf"
    code, out, _ = run("quantize", str(tiny), str(target), "--type", "Q8_0", "--json", "-t", "2")
    figures = json.loads(out)
    assert code == 0
    assert figures["nbytes"] == target.stat().st_size
    assert figures["roles"]["ffn_up"]["types"] == {"Q8_0": 3}
    assert figures["roles"]["ffn_up"]["bits_per_weight"] == 8.5
    assert 0 < figures["roles"]["ffn_up"]["relative_error"] < 0.01
    assert figures["roles"]["attn_norm"]["n_converted"] == 0
    assert figures["tensors"]["output_norm.weight"] == "F32"


def test_memory_stays_far_below_the_size_of_the_model(f16: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pyflow.cli import main; code = main(sys.argv[1:]);"
        "status = dict(line.split(':') for line in open('/proc/self/status'));"
        "print(code, status['VmHWM'].split()[0])"
    )
    arguments = ["quantize", str(f16), str(tmp_path / "q4.gguf"), "--type", "Q4_0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    status, kilobytes = map(int, done.stdout.split()[-2:])
    assert status == 0
    assert kilobytes < 150_000 < f16.stat().st_size / 1000


@pytest.mark.parametrize(
    ("number", "code", "arguments"),
    [
        (signal.SIGINT, 130, ["quantize", "IN", "OUT", "--type", "IQ4_XS", "-t", "1"]),
        (signal.SIGTERM, 143, ["quantize", "IN", "OUT", "--type", "IQ4_XS", "-t", "1"]),
        (signal.SIGHUP, 129, ["quantize", "IN", "OUT", "--type", "IQ4_XS", "-t", "1"]),
        (signal.SIGTERM, 143, ["eval", "compare", "IN", "--types", "IQ4_XS", "-f", __file__]),
    ],
)
def test_an_interruption_leaves_nothing(
    f16: Path, tmp_path: Path, number: int, code: int, arguments: list[str]
) -> None:
    names = {"IN": str(f16), "OUT": str(tmp_path / "target.gguf")}
    command = [names.get(argument, argument) for argument in arguments]
    assert interrupted(command, number, tmp_path) == code
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["IN", "OUT"], 2, "--type"),
        (["IN", "OUT", "--type", "q9"], 2, "q9"),
        (["IN", "OUT", "--type", "q8_0", "--tensor-type", "attn_v"], 2, "expected PATTERN=FORMAT"),
        (["IN", "OUT", "--type", "q8_0", "--tensor-type", "a=q4_k_m"], 2, "expected PATTERN=FO"),
        (["IN", "OUT", "--type", "q8_0", "--tensor-type", "(=q4_0"], 2, "'('"),
        (["IN", "OUT", "--type", "q8_0", "--tensor-type", "zz=q4_0"], 3, "match 'zz', found none"),
        (
            [
                *("IN", "OUT", "--type", "q8_0", "--tensor-type", "attn_v=q5_0"),
                *("--tensor-type", "blk.0.attn_v=q8_0"),
            ],
            3,
            "'blk.0.attn_v.weight', which the earlier 'attn_v'",
        ),
        (
            [
                *("IN", "OUT", "--type", "q8_0", "--keep-output"),
                *("--tensor-type", "token_embd=q4_0"),
            ],
            3,
            "only 'token_embd.weight', which --keep-output keeps",
        ),
        (["IN", "OUT", "--type", "q8_0", "--imatrix", "IN"], 3, "expected an importance matrix"),
        (["IN", "IN", "--type", "q8_0"], 1, "other than the source"),
        (["IN", "IN", "--type", "q8_0", "--force"], 1, "other than the source"),
        (["IN", "THERE", "--type", "q8_0"], 1, "is there already; --force replaces it"),
        (["IN", "/dev/null", "--type", "q8_0"], 1, "is no file that could be replaced"),
        (["IN", "/dev/null", "--type", "q8_0", "--force"], 1, "is no file that could be replaced"),
        (["IN", "OUT", "--type", "q8_0", "--imatrix", "/no/such"], 3, "/no/such: "),
        (["IN", "-", "--type", "q8_0"], 2, "found '-'"),
        (["IN", "", "--type", "q8_0"], 2, "expected a name, found none"),
        (["IN", "FOLDER", "--type", "q8_0"], 3, "a name that ends in .gguf, not out\n"),
        (["IN", "no/OUT", "--type", "q8_0"], 1, "there is no folder"),
        (["no-such.gguf", "OUT", "--type", "q8_0"], 3, "no such file"),
    ],
)
def test_what_cannot_be_is_one_line(
    run: Run, f16: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    names = {"IN": str(f16), "OUT": str(tmp_path / "out.gguf"), "THERE": __file__}
    names |= {"no/OUT": str(tmp_path / "no" / "out.gguf"), "FOLDER": str(tmp_path / "out")}
    found, out, err = run("quantize", *(names.get(a, a) for a in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_told_of_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "f32.gguf", tmp_path / "target.gguf"
    write_model(source, n_layers=2, window=0, has_tokenizer=True)
    args = ("quantize", str(source), str(target), "--type", "q8_0")
    nbytes = source.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=nbytes))
        assert run(*args)[0] == 0
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=nbytes // 8))
        code, _, err = run(*args, "--force")
    assert code == 4
    assert f"{target}: expected " in err
    assert "free bytes on its disk" in err
    # What others took meanwhile is an error of writing.
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes // 8, limit[1]))
    try:
        code, _, err = run(*args, "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert code == 1
    assert f"{target}: File too large" in err
    assert {*tmp_path.iterdir()} == {source, target}


def test_quantized_weights_need_a_word(run: Run, q4_k_m: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "out.gguf")
    code, _, err = run("quantize", str(q4_k_m), target, "--type", "q4_0")
    assert code == 3
    assert "--allow-requantize" in err


@pytest.mark.accept
@pytest.mark.parametrize("type_name", mixes.TYPES)
def test_every_type_runs(f16: Path, type_name: str, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    assert main(["quantize", str(f16), str(target), "--type", type_name]) == 0
    made = formats.open(target)
    assert made.metadata["general.file_type"] == mixes.TYPES[type_name].file_type
    text = "The quick brown fox jumps over the lazy dog. " * 30
    with pyflow.load(f16) as base, pyflow.load(target) as quantized:
        expected = perplexity(base, text, n_ctx=128, n_chunks=2).ppl
        found = perplexity(quantized, text, n_ctx=128, n_chunks=2).ppl
    if type_name == "Q2_B32":  # too coarse for a model as small as this one
        assert found < 49152  # its vocabulary
    else:
        assert found < 1.5 * expected + 0.5


_PEER_PERPLEXITY = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from make_perplexity import LlamaPeer, PeerOptions, cumulative_perplexity
options = PeerOptions(n_threads=1, flash_attention=True)
with LlamaPeer(Path(sys.argv[3]), options) as peer:
    text = sys.stdin.buffer.read().decode()
    tokens = peer.tokenize(text, add_special=True)
    print(json.dumps(cumulative_perplexity(peer, tokens, int(sys.argv[4]))))
"""


def by_llama_cpp(target: Path, text: str, n_chunks: int = 24) -> float:
    """llama.cpp's perplexity; skips where there is no llama.cpp."""
    found = subprocess.run([PEER, "-c", "import llama_cpp"], check=False, capture_output=True)
    if found.returncode:
        pytest.skip("no llama_cpp; PYFLOW_PEER_PYTHON names a Python that has it")
    folders = [str(ROOT / "tests" / "golden"), str(ROOT / "bench")]
    command = [PEER, "-c", _PEER_PERPLEXITY, *folders, str(target), str(n_chunks)]
    peer = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
    return float(json.loads(peer.splitlines()[-1])[-1])


def by_us(target: Path, text: str, n_chunks: int = 24) -> float:
    with pyflow.load(target) as model:
        return perplexity(model, text, n_chunks=n_chunks).ppl


@pytest.mark.accept
@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q6_K", "Q4_K_M", "IQ4_XS", "Q4_0"])
def test_llama_cpp_loads_it_and_finds_the_same_perplexity(
    f16: Path, tmp_path: Path, type_name: str, wikitext2: str
) -> None:
    target = tmp_path / "target.gguf"
    assert main(["quantize", str(f16), str(target), "--type", type_name]) == 0
    assert by_llama_cpp(target, wikitext2) == pytest.approx(by_us(target, wikitext2), rel=0.005)


@pytest.mark.accept
def test_of_q3_k_m_we_find_the_perplexity_of_its_weights(
    f16: Path, tmp_path: Path, wikitext2: str
) -> None:
    """llama.cpp rounds 256 activations by one scale where we round 32: its perplexity is 0.6 %
    above ours over 24 chunks, 0.2 % over 50 and over 100. Ours is the nearer to that of the same
    weights in F32, whose activations stay as they are."""
    target, exact = tmp_path / "target.gguf", tmp_path / "exact.gguf"
    assert main(["quantize", str(f16), str(target), "--type", "Q3_K_M"]) == 0
    assert main(["quantize", str(target), str(exact), "--type", "F32", "--allow-requantize"]) == 0
    theirs, ours = by_llama_cpp(target, wikitext2), by_us(target, wikitext2)
    expected = by_us(exact, wikitext2)
    assert ours == pytest.approx(expected, rel=0.005)
    assert abs(ours - expected) < abs(theirs - expected)
    assert theirs == pytest.approx(ours, rel=0.01)
    long = by_llama_cpp(target, wikitext2, 100)
    assert long == pytest.approx(by_us(target, wikitext2, 100), rel=0.005)


@pytest.mark.accept
def test_llama_cpp_refuses_our_own_formats(f16: Path, tmp_path: Path) -> None:
    if subprocess.run(
        [PEER, "-c", "import llama_cpp"], check=False, capture_output=True
    ).returncode:
        pytest.skip("no llama_cpp; PYFLOW_PEER_PYTHON names a Python that has it")
    target = tmp_path / "target.gguf"
    assert main(["quantize", str(f16), str(target), "--type", "Q3H_B64"]) == 0
    folders = [str(ROOT / "tests" / "golden"), str(ROOT / "bench")]
    command = [PEER, "-c", _PEER_PERPLEXITY, *folders, str(target), "1"]
    peer = subprocess.run(command, check=False, capture_output=True, text=True, input="")
    assert peer.returncode == 1
    assert "llama.cpp does not load it" in peer.stderr
