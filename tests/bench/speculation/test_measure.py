"""bench/speculation: the order of runs, their summaries, and refusals."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow import _core
from pyflow.speculate import Root, Speculator
from pyflow.speculate.drafters.lookup import PromptLookup

CODE_PROMPTS = Path(__file__).parents[3] / "bench" / "data" / "code_prompts.jsonl"
Bench = Callable[[str], ModuleType]
Measure = Callable[..., int]
REPEATS = "red, green, blue, red, green, blue, red, green,"


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    """Writes lines, given as JSON values or as they stand, and returns the path."""

    def write(*lines: Any) -> str:
        path = tmp_path / "questions.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(text + "\n" for text in texts))
        return str(path)

    return write


@pytest.fixture
def measure(bench: Bench) -> Measure:
    """measure(*args) -> exit code, also of a wrong command line."""

    def run(*args: str) -> int:
        try:
            code: int = bench("speculation/measure").main(list(args))
        except SystemExit as error:
            return int(error.code or 0)
        return code

    return run


@pytest.fixture
def two_tasks(file: Callable[..., str]) -> str:
    lines = [{"id": f"r{i}", "task": "raw", "prompt": f"{i}: {REPEATS}", "raw": True} for i in "12"]
    lines += [{"id": f"q{i}", "task": "question", "prompt": f"{i} + {i} is?"} for i in "12"]
    return file(*lines)


@pytest.mark.parametrize("n", range(1, 8))
def test_every_method_runs_once_a_turn_with_plain_decoding_next_to_it(bench: Bench, n: int) -> None:
    paired = bench("speculation/paired")
    blocks, plain = paired.blocks, paired.PLAIN
    for turn in range(2):
        order = blocks(n, turn)
        assert Counter(m for block in order for m in block if m != plain) == Counter(range(n))
        for block in order:
            assert block.count(plain) == 1
            at = block.index(plain)
            assert all(abs(block.index(m) - at) <= 1 for m in block)
    # A B, then B A: in two turns each method is once before and once after its plain run.
    assert blocks(n, 1) == [block[::-1] for block in reversed(blocks(n, 0))]
    assert blocks(n, 2) == blocks(n, 0)


def test_an_interval_is_the_same_in_every_run_and_holds_the_statistic(bench: Bench) -> None:
    summaries = bench("speculation/summaries")
    values = np.random.default_rng(3).lognormal(0.3, 0.4, 40).tolist()
    for statistic in (summaries.median, summaries.geometric_mean):
        low, high = summaries.interval(values, statistic)
        assert (low, high) == summaries.interval(values, statistic)
        assert min(values) < low < float(statistic(np.array(values))) < high < max(values)
    assert summaries.interval([2.0], summaries.median) == (2, 2)


def test_an_interval_has_the_width_that_theory_gives_it(bench: Bench) -> None:
    summaries = bench("speculation/summaries")
    values = np.exp(np.random.default_rng(5).normal(0, 0.2, 400))
    low, high = summaries.interval(values.tolist(), summaries.geometric_mean)
    expected = 2 * 1.96 * np.log(values).std() / 20
    assert np.log(high) - np.log(low) == pytest.approx(expected, rel=0.06)


def test_the_line_goes_through_whole_lookaheads_alone(bench: Bench) -> None:
    line = bench("speculation/speed_chart").line
    rows = [
        {"method": method, "rows_per_step": rows, "tokens_per_step": tokens}
        for method, rows, tokens in [
            ("lookahead", 4, 1.5),
            ("lookahead:3/4/3", 16, 2.5),
            ("lookahead:3/4/3/noexplore", 4, 9),
            ("jacobi:8", 9, 9),
        ]
    ]
    found = line(rows)
    assert found is not None
    assert found[:2] == pytest.approx((0.5, 0.5))
    assert line(rows[1:]) is None


def test_questions_are_those_of_spec_bench_or_ours(bench: Bench, file: Callable[..., str]) -> None:
    questions = bench("speculation/questions")
    path = file(
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
        {"question_id": 111, "category": "math", "turns": ["three"]},
        {"question_id": 401, "category": "math_reasoning", "turns": ["four"], "reference": []},
        "",
        {"id": "a", "task": "math", "prompt": "five", "raw": True},
        {"task": "math", "prompt": "six"},
    )
    tasks = questions.read(path)
    assert {task: [(q.id, q.text, q.raw) for q in found] for task, found in tasks.items()} == {
        "multi-turn conversation": [("81", "one", False), ("111", "three", False)],
        "math_reasoning": [("401", "four", False)],
        "math": [("a", "five", True), ("5", "six", False)],
    }


def test_questions_are_taken_evenly(bench: Bench) -> None:
    questions = bench("speculation/questions")
    numbered = [questions.Question(str(i), "t", "x", raw=False) for i in range(80)]
    assert [q.id for q in questions.choose(numbered, 4)] == ["0", "20", "40", "60"]
    assert questions.choose(numbered[:3], 10) == numbered[:3]


def test_code_prompts_are_ten_to_continue_and_ten_to_repeat(bench: Bench) -> None:
    tasks = bench("speculation/questions").read(str(CODE_PROMPTS))
    assert {task: len(found) for task, found in tasks.items()} == {
        "code completion": 10,
        "code edit": 10,
    }
    assert all(q.raw for q in tasks["code completion"])
    for q in tasks["code edit"]:
        assert not q.raw
        assert 25 <= q.text.split("```")[1].count("\n") <= 60
    assert len({q.id for found in tasks.values() for q in found}) == 20


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "magic"], "'magic'"),
        (["--methods", "lookahead:7/5"], "'lookahead:7/5'"),
        (["--methods", "lookahead:7/1/7"], "'lookahead:7/1/7'"),
        (["--methods", "jacobi:0"], "'jacobi:0'"),
        (["--methods", "lookup,lookup"], "'lookup,lookup'"),
        (["--methods", "draft"], "--draft-model"),
        (["--methods", "pool"], "--spec-pool"),
        (["--temp", "nan"], "nan"),
        (["--methods", "lookup", "--draft-model", "self"], "--draft-model"),
        (["--methods", "lookup", "--spec-pool", "x"], "--spec-pool"),
        (["--draft-layers", "0-3"], "--draft-model self"),
        (["--batch", "x"], "--batch"),
        (["--batch", "17"], "1 to 16, found 17"),
        (["--batch", "4", "--n-per-task", "3"], "--n-per-task"),
        (["--batch", "2"], "'a'"),
        (["--tasks", "b"], "'b'"),
        (["--prompt-len", "1"], "2 to "),
        (["-n", "1"], "-n"),
        (["--prompts", "/no/such/file"], "/no/such/file"),
    ],
)
def test_wrong_usage_ends_with_exit_code_2(
    measure: Measure,
    file: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    assert measure("--prompts", file({"task": "a", "prompt": "x"}), *args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["{"], "line 1"),
        ([], "questions.jsonl"),
        ([{"prompt": "x"}], "line 1"),
        ([{"task": "a", "prompt": "x"}, {"task": "a", "prompt": " "}], "line 2"),
        ([{"task": "a", "turns": []}], "line 1"),
        ([{"task": "a", "prompt": "x", "raw": 1}], "line 1"),
        (["[1]"], "line 1"),
    ],
)
def test_a_bad_file_is_reported_by_its_line(
    measure: Measure,
    file: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    lines: list[Any],
    where: str,
) -> None:
    assert measure("--prompts", file(*lines)) == 2
    assert where in capsys.readouterr().err


def test_a_chart_without_matplotlib_is_refused_before_anything_is_measured(
    measure: Measure,
    two_tasks: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert measure("--help") == 0  # everything is imported
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert measure("--prompts", two_tasks, "--plot", "x.png") == 2
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.fixture
def run(measure: Measure, model_path: Callable[[str], Path]) -> Measure:
    """run(questions, *args) with a small model, six tokens and two questions per task."""
    model = str(model_path("smollm2"))
    return lambda path, *args: measure(
        *("-m", model, "--prompts", path, "-n", "6", "--n-per-task", "2"), *args
    )


def test_json_has_every_sample_and_the_summaries(
    run: Measure, two_tasks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["lookup", "lookahead:2/3/2/noprompt", "none"]
    args = ["--methods", ",".join(names), "--fixed", "--batch", "1,2", "-o", "json"]
    assert run(two_tasks, *args, "--temp", "0.7") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"]
    assert told["n_predict"] == 6
    samples = told["samples"]
    # Four questions one by one and two pairs of them, by three methods.
    assert len(samples) == (4 + 2) * 3
    for s in samples:
        assert len(s["ids"]) == len(s["prompt_n"]) == s["batch"]
        assert s["ratio"] == pytest.approx(s["plain_decode_ms"] / s["decode_ms"])
        assert (s["speculation"] is None) == (s["method"] == "none")
        if s["speculation"]:
            assert s["speculation"]["tokens"] == s["decode_n"]
    # The order is mirrored from one question to the next.
    first = [s["plain_first"] for s in samples if s["method"] == "lookup" and s["batch"] == 1]
    assert first == [False, True, False, True]
    found = {(r["batch"], r["task"], r["method"]): r for r in told["summaries"]}
    assert set(found) == {
        (b, task, m) for b in (1, 2) for task in ("raw", "question", "all") for m in names
    }
    everything = found[1, "all", "lookup"]
    ratios = [s["ratio"] for s in samples if s["method"] == "lookup" and s["batch"] == 1]
    assert everything["n"] == 4
    assert everything["speedup_median"] == pytest.approx(np.median(ratios))
    assert everything["speedup_geomean"] == pytest.approx(np.exp(np.mean(np.log(ratios))))
    low, high = everything["speedup_geomean_95"]
    assert min(ratios) <= low <= everything["speedup_geomean"] <= high <= max(ratios)
    assert found[1, "raw", "lookup"]["accepted"] > 0
    assert found[2, "raw", "lookahead:2/3/2/noprompt"]["explored"] > 0


def test_markdown_has_a_table_for_every_setting_and_the_chart_is_drawn(
    run: Measure, two_tasks: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chart = tmp_path / "chart.png"
    args = ["--methods", "lookup,lookahead:2/3/2,lookahead:4/4/4", "--fixed", "--plot", str(chart)]
    assert run(two_tasks, *args, "--prompt-len", "40,100") == 0
    out = capsys.readouterr().out
    tables = [part for part in out.split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    for table in tables:
        lines = table.strip().splitlines()
        assert len({len(line) for line in lines}) == 1
        assert len(lines) == 2 + 3 * 3
        assert lines[1].startswith("| :--")
        cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines[2:]]
        assert cells == [
            [task, method]
            for task in ("raw", "question", "all")
            for method in ("lookup", "lookahead:2/3/2", "lookahead:4/4/4")
        ]
    assert "Prompts of at most 40 tokens, one at a time:" in out
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_prompts_are_cut_within_the_chat_template(
    bench: Bench,
    run: Measure,
    model_path: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    file: Callable[..., str],
) -> None:
    questions = bench("speculation/questions")
    text = "Tell me of the sea, the sky and the wind. " * 20
    asked = questions.Question("1", "t", text, raw=False)
    with pyflow.load(model_path("smollm2"), n_threads=1) as model:
        whole = questions.encode(model, text, raw=False)
        cut = questions.tokens(model, asked, 60)
        assert 50 <= len(cut) <= 60
        assert cut[:5] == whole[:5]
        assert cut[-3:] == whole[-3:]
        assert questions.tokens(model, asked, len(whole)) == whole
        raw = questions.Question("1", "t", text, raw=True)
        assert questions.tokens(model, raw, 60) == model.tokenizer.encode(text)[:60]
    path = file({"task": "a", "prompt": text})
    assert run(path, "--methods", "none", "--prompt-len", "9") == 2
    assert "--prompt-len: 9 tokens" in capsys.readouterr().err


class Wrong(Speculator):
    """Draws other tokens than the model says."""

    def _entry(self, root: Root, *_: Any) -> _core.Entry:
        return _core.Entry(root.seq, [root.token], _core.Sampler(temperature=9, top_k=0, seed=1))


def test_other_tokens_than_those_of_plain_decoding_fail(
    bench: Bench,
    run: Measure,
    two_tasks: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(choice: Any, *_: object, **__: object) -> Speculator | None:
        return Wrong([PromptLookup()]) if choice.name == "lookup" else None

    choices = bench("speculation/method_choice").MethodChoice
    monkeypatch.setattr(choices, "speculator", make)
    assert run(two_tasks, "--methods", "none,lookup") == 1
    err = capsys.readouterr().err
    assert all(part in err for part in ("lookup", "raw", "r1", "token 1"))
    assert err.count("\n") == 1


def test_interruption_prints_what_was_measured_so_far(
    bench: Bench,
    run: Measure,
    two_tasks: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paired = bench("speculation/paired")
    calls, plainly = Counter[str](), paired.Pairs._run

    def interrupted(*args: Any) -> Any:
        calls["run"] += 1
        if calls["run"] == 6:  # in the second question that counts
            os.kill(os.getpid(), signal.SIGINT)
        return plainly(*args)

    monkeypatch.setattr(paired.Pairs, "_run", interrupted)
    assert run(two_tasks, "--methods", "lookup", "-o", "json") == 130
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert not told["complete"]
    assert [s["ids"] for s in told["samples"]] == [["r1"]]
    assert err == "interrupted\n"
