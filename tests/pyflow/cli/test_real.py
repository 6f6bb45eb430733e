"""The command line with a real model: as a user meets it, signals, pipes and terminals included."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyflow import catalogue
from pyflow.cli import main

from .terminal import ANSWERING, EDITING, Terminal

pytestmark = pytest.mark.model

PYFLOW = [sys.executable, "-m", "pyflow"]
COUNT = "One, two, three, four,"


@pytest.fixture(autouse=True, scope="module")
def _pulled() -> None:
    catalogue.pull("smollm2")


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONSAFEPATH": "1",
        "XDG_STATE_HOME": str(home),
        "TERM": "xterm",
        "PYFLOW_CACHE": str(catalogue.cache_dir()),
    }


def output(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[str, str]:
    assert main(args) == 0
    out, err = capsys.readouterr()
    return out, err


def test_greedy_text_is_what_it_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["generate", "-m", "smollm2", "-p", COUNT, "--raw", "--temp", "0", "-n", "8"]
    out, err = output(capsys, *args)
    assert out.startswith(" five, six")
    assert re.search(r"prompt \d+ tokens, [\d.]+/s; generated 8 tokens", err)
    told = json.loads(output(capsys, *args, "--json")[0])
    assert told["text"] == out.removesuffix("\n")
    assert told["stop_reason"] == "length"
    assert len(told["tokens"]) == 8


def test_threads_and_cache_position_do_not_change_sampled_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    args = ["generate", "-m", "smollm2", "--raw", "-n", "16", "--seed", "7", "--temp", "1"]
    alone, _ = output(capsys, *args, "-p", COUNT, "-t", "1")
    assert output(capsys, *args, "-p", COUNT, "-t", "2")[0] == alone
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(p) + "\n" for p in ("Another prompt.", COUNT, "A third")))
    out, _ = output(capsys, *args, "--jsonl", "-f", str(file))
    assert json.loads(out.splitlines()[1])["text"] == alone.removesuffix("\n")


def test_a_question_by_pipe_is_answered(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PYFLOW, "chat", "-m", "smollm2", "--temp", "0"],
        input=b"Name the capital of France.\n",
        capture_output=True,
        env=environment(tmp_path),
        check=True,
    )
    assert b"Paris" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr


def test_inspect_tells_contents_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(output(capsys, "inspect", "smollm2", "--json")[0])
    assert told["metadata"]["general.architecture"] == "llama"
    assert told["types"] == {"Q8_0": 1, "F32": 61, "Q4_1": 210}
    assert len(told["tensors"]) == 272
    assert "token_embd.weight" in output(capsys, "inspect", "smollm2")[0]
    small = json.loads(output(capsys, "inspect", "smollm2", "--memory", "-c", "512", "--json")[0])
    large = json.loads(output(capsys, "inspect", "smollm2", "--memory", "-c", "0", "--json")[0])
    assert large["kv"] == 16 * small["kv"]
    assert small["fits"]
    assert small["total"] == sum(small[k] for k in ("weights", "kv", "scratch", "tokenizer"))
    assert "it fits" in output(capsys, "inspect", "smollm2", "--memory")[0]
    assert main(["inspect", "smollm2", "--memory", "-c", "9000"]) == 2


def test_perplexity_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. It was a sunny day. " * 12)
    args = ["eval", "ppl", "-m", "smollm2", "-f", str(text), "-c", "32", "--chunks", "3"]
    told = json.loads(output(capsys, *args, "--json")[0])
    assert told.keys() >= {"ppl", "stderr", "chunks", "tokens", "seconds", "method"}
    assert told["chunks"] == 3
    assert 1 < told["ppl"] < 200
    assert f"{told['ppl']:.4f}" in output(capsys, *args)[0]
    decode = json.loads(output(capsys, *args, "--regime", "decode", "--json")[0])
    assert decode["ppl"] == pytest.approx(told["ppl"], rel=0.02)
    assert main([*args, "-c", "512"]) == 2
    assert "longer text" in capsys.readouterr().err


def test_bench_uses_llama_benchs_names(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "-m", "smollm2", "-p", "8", "-n", "2", "-d", "0,4", "-r", "2", "-t", "1,2"]
    told = json.loads(output(capsys, *args, "-o", "json")[0])
    assert len(told) == 8
    assert {(r["n_prompt"], r["n_gen"]) for r in told} == {(8, 0), (0, 2)}
    for r in told:
        assert len(r["samples_ns"]) == len(r["samples_ts"]) == 2
        assert r["avg_ts"] > 0
        assert r["model_n_params"] == 134_515_008
        assert r["of_one_row"] is None
    out, _ = output(capsys, *args)
    assert "pp8 @ d4" in out
    assert len({len(line) for line in out.splitlines()}) == 1


def test_bench_holds_speeds_against_what_the_machine_could_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ["bench", "-m", "smollm2", "-p", "8", "-n", "2", "-r", "3", "-t", "1"]
    prompt, generation = json.loads(output(capsys, *args, "-o", "json")[0])
    # Every weight but the vocabulary's multiplies every token; the vocabulary's only the last one.
    layers, vocabulary = 106_168_320, 49_152 * 576
    multiplies = 8 * layers + vocabulary
    assert prompt["gmac_per_s"] == pytest.approx(multiplies / prompt["median_ns"])
    part = prompt["gmac_per_s"] / prompt["dot_peak_gmac_per_s"]
    assert prompt["of_dot_peak"] == pytest.approx(part)
    assert prompt["gb_per_s"] is prompt["of_read_limit"] is None
    read = 2 * 96_576_768
    assert generation["gb_per_s"] == pytest.approx(read / generation["median_ns"])
    assert generation["of_read_limit"] > 0
    assert generation["gmac_per_s"] is generation["of_dot_peak"] is None


def test_bench_verifies_batches_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "-m", "smollm2", "--rows", "1,3", "-r", "2", "-t", "1"]
    args += ["--cache-type", "q8_0"]
    told = json.loads(output(capsys, *args, "-o", "json")[0])
    assert [(r["n_rows"], r["n_depth"], r["n_prompt"], r["n_gen"]) for r in told] == [
        (1, 128, 0, 0),
        (3, 128, 0, 0),
    ]
    one, three = told
    assert one["of_one_row"] == 1
    # The median of two is their mean, which the file keeps as whole nanoseconds.
    assert three["of_one_row"] == pytest.approx(three["median_ns"] / one["median_ns"], rel=1e-6)
    assert three["gb_per_s"] == pytest.approx(96_576_768 / three["median_ns"], rel=1e-6)
    assert three["type_k"] == three["type_v"] == "q8_0"
    out, _ = output(capsys, *args, "-d", "4,600", "-p", "4")
    speeds, batches = out.split("\n\n")
    assert "pp4 @ d600" in speeds
    assert "rows3 @ d4" in batches
    assert "rows1 @ d600" in batches
    assert "rows" not in speeds
    assert len({len(line) for line in batches.splitlines()}) == 1


def test_ctrl_c_prints_what_there_is_and_exits_130(tmp_path: Path) -> None:
    args = ["generate", "-m", "smollm2", "-p", COUNT, "--raw", "--temp", "1.5"]
    with subprocess.Popen(
        [*PYFLOW, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path)
    ) as child:
        assert child.stdout is not None
        first = os.read(child.stdout.fileno(), 1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    if child.returncode == 0:
        pytest.skip("the model ended its answer before the signal came")
    assert child.returncode == 130
    assert (first + out).endswith(b"\n")
    assert b"ended by interruption" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("closed", "code", "message"),
    [
        ("<&-", 2, "error: standard input is empty"),
        (">&-", 1, "error: standard output: Bad file descriptor\n"),
        ("<&- >&- 2>&-", 1, ""),
        ("2>&-", 0, ""),
    ],
)
def test_what_closed_standard_streams_lack_is_told(
    tmp_path: Path, closed: str, code: int, message: str
) -> None:
    command = "chat" if "input" in message else f"generate -p '{COUNT}' -n 2"
    line = f"exec {' '.join(PYFLOW)} {command} -m smollm2 {closed}"
    done = subprocess.run(
        line, shell=True, check=False, capture_output=True, env=environment(tmp_path), text=True
    )
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == bool(message)


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    args = ["generate", "-m", "smollm2", "-p", COUNT, "--raw", "--temp", "0", "-n", "40"]
    with subprocess.Popen(
        [*PYFLOW, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path)
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert os.read(child.stdout.fileno(), 1) == b" "
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 0


def test_a_chat_in_a_terminal(tmp_path: Path) -> None:
    env = environment(tmp_path)
    terminal = Terminal([*PYFLOW, "chat", "-m", "smollm2", "--seed", "1", "--show-timings"], env)
    terminal.wait_for("/help lists commands")
    terminal.wait_for(">")
    terminal.type("\x03")
    terminal.wait_for("to leave, type /exit or press Ctrl-D")
    terminal.type("Say hello.\r")
    terminal.wait_for(r"\[prompt \d+ tokens.*answer \d+ tokens")
    for ask in ("Write a very long story about the sea.\r", "/regen\r"):
        terminal.wait_for(EDITING)
        terminal.type(ask)
        terminal.wait_for(ANSWERING)
        terminal.type("\x03")
        terminal.wait_for(r"answer \d+ tokens?.*\]")
    terminal.wait_for(EDITING)
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    (history,) = tmp_path.rglob("chat_history")
    assert "Say hello." in history.read_text()
