"""generate, chat and bench over several stages, as a user starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from pyflow.cli import main
from pyflow.engine.model_files import ModelFiles

from ..speculate.trained import speculators as made_up
from ..speculate.trained.methods import write_kangaroo
from .ranks import left

pytestmark = pytest.mark.model

PYFLOW = [sys.executable, "-m", "pyflow"]
LIMIT_S = 60  # a start takes a few seconds; one that hangs takes this long
TEXT = "red, green, blue, red, green, blue, red, green,"

Run: TypeAlias = Callable[..., tuple[str, str]]
Start: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def smollm2(model_path: Callable[[str], Path], tmp_path: Path) -> str:
    """The model by a path of its own, by which its processes can be known."""
    link = tmp_path / "smollm2.gguf"
    link.symlink_to(model_path("smollm2"))
    return str(link)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Output and errors of a command in this process, which must end as expected."""

    def run_(*args: str, code: int = 0) -> tuple[str, str]:
        found = main(args)
        out, err = capsys.readouterr()
        assert found == code, err
        return out, err

    return run_


@pytest.fixture
def start(mpiexec: str, smollm2: str) -> Start:
    """Runs a command on n ranks, on 0 by itself, and leaves no process behind.

    interrupt: what it must have written when it gets SIGINT. supervised: by `cluster run`.
    """

    def start_(
        n: int, *args: str, stdin: str = "", interrupt: str = "", supervised: bool = False
    ) -> subprocess.CompletedProcess[str]:
        command = [*([mpiexec, "-n", str(n)] if n else []), *PYFLOW, *args]
        if supervised:
            command = [*PYFLOW, "cluster", "run", "-n", str(n), "--", *args]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                if interrupt:
                    assert process.stdout is not None
                    seen = ""
                    while interrupt not in seen:
                        seen += (char := process.stdout.read(1))
                        assert char, process.communicate()[1]
                    process.send_signal(signal.SIGINT)
                out, err = process.communicate(stdin, timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.terminate()  # mpiexec then ends its ranks
                out, err = process.communicate()
                err += f"\nended after {LIMIT_S} s"
        assert not left(smollm2), err
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return start_


def answer(smollm2: str, *more: str) -> list[str]:
    args = ["generate", "-m", smollm2, "-t", "1", "-p", TEXT, "--raw", "-n", "20"]
    return [*args, "--temp", "0.7", "--seed", "4", *more]


def write_heads(folder: Path) -> None:
    """A speculator that nobody has trained."""
    based = {"base_embedding": True, "embedding_scale": 7.0, "base_head": True}
    sizes, tokens = (49152, 576, 32, 3), range(0, 49152, 96)
    tensors = made_up.mlp_tensors(*sizes, from_base=True, token_map=tokens)
    made_up.write(folder, made_up.mlp_config(*sizes, pyflow=based), tensors)


def test_stages_in_threads_write_what_one_place_writes(run: Run, smollm2: str) -> None:
    plain, _ = run(*answer(smollm2))
    more = ["--pipeline", "speculative", "--stages", "3"]
    out, err = run(*answer(smollm2, *more))
    assert out == plain
    assert err.count("tokens per run") == 1
    told = json.loads(run(*answer(smollm2, *more, "--json"))[0])
    assert told["text"] + "\n" == plain
    assert told["pipeline"]["tokens"] == 19
    assert told["pipeline"]["tokens_per_run"] == 19 / told["pipeline"]["runs"]


def test_all_that_a_strategy_can_leave_out_can_be_left_out(run: Run, smollm2: str) -> None:
    plain, _ = run(*answer(smollm2))
    flags = ["--redraft", "--no-cancel", "--no-continuous", "--no-partitions", "--no-async"]
    numbers = ["--draft-len", "1", "--flight", "3", "--p-accept", "0.3", "--p-recovery", "0.1"]
    common = answer(smollm2, "--pipeline", "pipeinfer", "--stages", "2", "--p-decay", "0.1")
    for more in ([*flags, "--layers", "29,1"], [*numbers, "--draft-model", smollm2]):
        assert run(*common, *more)[0] == plain


@pytest.mark.parametrize("drafts", ["model", "heads"])
def test_two_ranks_draft_and_tell_json(
    run: Run, start: Start, smollm2: str, tmp_path: Path, drafts: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(p) + "\n" for p in (TEXT, "A second one.")))
    args = ["generate", "-m", smollm2, "-t", "1", "--raw", "-n", "16", "--seed", "4"]
    args += ["--jsonl", "-f", str(prompts)]
    plain = [json.loads(line) for line in run(*args)[0].splitlines()]
    more = ["--pipeline", "speculative", "--layers", "10,20"]
    more += ["--draft-model", smollm2] if drafts == "model" else ["--spec", "mlp"]
    write_heads(tmp_path / "smollm2.speculator")
    done = start(2, *args, *more)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["tokens"] for t in told] == [t["tokens"] for t in plain]
    if drafts == "model":
        assert all(t["pipeline"]["accepted"] == t["pipeline"]["decided"] > 0 for t in told)
    else:
        assert all(t["pipeline"]["drafted"] > 9 for t in told)


@pytest.mark.parametrize("spec", ["jacobi", "pool", "auto", "mlp", "kangaroo"])
def test_stages_draft_by_any_method(run: Run, smollm2: str, tmp_path: Path, spec: str) -> None:
    beside = tmp_path / "smollm2.speculator"
    if spec == "kangaroo":
        write_kangaroo(beside, ModelFiles(smollm2), 27)
    else:
        write_heads(beside)
    text = tmp_path / "text"
    text.write_text(4 * TEXT)
    plain, _ = run(*answer(smollm2))
    more = ["--pipeline", "speculative", "--stages", "2", "--spec", spec, "--json"]
    more += ["--spec-pool", str(text)] if spec == "pool" else []
    told = json.loads(run(*answer(smollm2, *more))[0])
    assert told["text"] + "\n" == plain
    assert (told["pipeline"]["explored"] > 0) == (spec == "jacobi")
    assert told["pipeline"]["accepted"] > 0 or spec in {"jacobi", "mlp", "kangaroo"}
    assert told["pipeline"]["drafted"] > 9 or spec == "jacobi"


def test_a_rank_of_its_own_drafts_by_models_of_which_one_corrects_the_other(
    run: Run, start: Start, smollm2: str
) -> None:
    plain, _ = run(*answer(smollm2))
    more = ["--pipeline", "speculative", "--draft-len", "3", "--json"]
    # The model itself is right always, and what some of its layers say is changed to that.
    drafts = ["--draft-model", f"self,{smollm2}", "--draft-layers", "0-8,29"]
    told = json.loads(run(*answer(smollm2, *more, *drafts, "--stages", "2"))[0])
    assert told["text"] + "\n" == plain
    assert told["pipeline"]["accepted"] == told["pipeline"]["decided"] > 10
    for n_ranks, ranks, layers in ((3, "1", [15, 0, 15]), (4, "-1,1", [15, 0, 15, 0])):
        where = ["--draft-rank", ranks, "--layers", "even"]
        done = start(n_ranks, *answer(smollm2, *more, *drafts, *where))
        assert done.returncode == 0, done.stderr
        there = json.loads(done.stdout)
        assert there["text"] == told["text"]
        assert there["pipeline"]["layers"] == layers
        assert there["pipeline"]["accepted"] == there["pipeline"]["decided"] > 10
        assert all(there["pipeline"]["resident_nbytes"])


def test_a_chat_of_ranks_whose_last_drafts_with_some_layers_of_the_model(
    start: Start, smollm2: str
) -> None:
    chat = ["chat", "-m", smollm2, "-t", "1", "--temp", "0.8", "--seed", "3", "-n", "16"]
    chat += ["--pipeline", "auto", "--draft-model", "self", "--draft-layers", "0-3"]
    questions = "Name the capital of France.\nAnd of Spain?\n"
    done = start(2, *chat, "--draft-rank", "-1", stdin=questions, supervised=True)
    assert done.returncode == 0, done.stderr
    one = start(2, *chat, stdin=questions)
    assert done.stdout == one.stdout
    assert "layers 30,0, measured in " in done.stderr


def test_two_ranks_draft_by_lookahead(run: Run, start: Start, smollm2: str) -> None:
    plain, _ = run(*answer(smollm2))
    more = ["--pipeline", "pipeinfer", "--spec", "lookahead", "--lookahead", "4,4,4"]
    done = start(2, *answer(smollm2, *more))
    assert (done.returncode, done.stdout) == (0, plain), done.stderr


def test_ranks_share_stages(run: Run, start: Start, smollm2: str) -> None:
    plain, _ = run(*answer(smollm2))
    one = answer(smollm2, "--pipeline", "speculative", "--draft-model", smollm2)
    two = answer(smollm2, "--pipeline", "pipeinfer", "--layers", "12,18", "--spec", "auto")
    for n, layout, args in (("3", "1x2", [*one, "--draft-rank", "-1"]), ("4", "2x2", two)):
        done = start(0, "cluster", "run", "-n", n, "--layout", layout, "--", *args)
        assert (done.returncode, done.stdout) == (0, plain), done.stderr
    for n, layout in ((2, "1x2"), (3, "auto")):
        done = start(n, *answer(smollm2, "--pipeline", "auto"), "--layout", layout)
        assert (done.returncode, done.stdout) == (0, plain), done.stderr
        assert re.search(r"layers [0-9,]+( of layout 1x[23])?, measured in ", done.stderr)
    done = start(3, *two, "--layout", "1x2")
    assert (done.returncode, "1x2: expected 2 ranks with layers, found 3" in done.stderr) == (2, 1)


def test_far_more_threads_than_cpus_are_told(run: Run, smollm2: str) -> None:
    more = ["--pipeline", "iterative", "--stages", "2", "-n", "2", "-t"]
    n = 2 * len(os.sched_getaffinity(0)) + 1
    _, err = run(*answer(smollm2, *more, str(n)))
    assert f"warning: 2 stages of {n} threads on " in err
    assert "warning" not in run(*answer(smollm2, *more, "1"))[1]


def test_three_supervised_ranks_answer_a_question(start: Start, smollm2: str) -> None:
    chat = ["chat", "-m", smollm2, "-t", "1", "--temp", "0", "-n", "24", "--show-timings"]
    chat += ["--pipeline", "auto"]
    question = "Name the capital of France.\n"
    done = start(3, *chat, stdin=question, supervised=True)
    assert (done.returncode, "Paris" in done.stdout) == (0, True), done.stderr
    why, layers, *_ = done.stderr.splitlines()
    assert re.fullmatch(r".*: [0-9.]+ tokens/s expected, .* 40% .*", why)
    counts = re.match(r"layers (\d+),(\d+),(\d+), measured in [0-9.]+ s: ", layers)
    assert counts is not None
    assert sum(map(int, counts.groups())) == 30
    assert done.stderr.count("tokens per run") == 1


def test_layers_that_were_measured_are_told_in_json(run: Run, smollm2: str) -> None:
    plain, _ = run(*answer(smollm2))
    more = ["--pipeline", "pipeinfer", "--stages", "2", "--layers", "auto", "--json"]
    out, err = run(*answer(smollm2, *more))
    told = json.loads(out)
    assert told["text"] + "\n" == plain
    pipeline = told["pipeline"]
    assert sum(pipeline["layers"]) == 30
    assert err.startswith("layers " + ",".join(map(str, pipeline["layers"])) + ", measured in ")
    assert [rank["nbytes"] > 0 for rank in pipeline["expected"]["ranks"]] == [
        n > 0 for n in pipeline["layers"]
    ]
    assert list(pipeline["strategies"].values()) == [1]


def test_bench_tells_what_travels(run: Run, start: Start, smollm2: str) -> None:
    bench = ["bench", "-m", smollm2, "-t", "1", "-p", "40", "-n", "12", "-r", "1", "-o", "json"]
    done = start(3, *bench, "--pipeline", "iterative", "--layers", "0,14,16")
    assert done.returncode == 0, done.stderr
    read, written = json.loads(done.stdout)
    assert (read["layers"], read["transport"]) == ([0, 14, 16], "mpi")
    assert written["strategy"] == "iterative"
    assert (written["n_gen"], written["tokens_per_run"], written["cancelled"]) == (12, 1.0, 0)
    # From the head, a hop, and the way back; a row of hidden states and a frame around it.
    assert written["messages_per_token"] == 3
    head, *ranks = written["resident_nbytes"]  # the head holds no layers
    assert all(10 << 20 < head < rank for rank in ranks), written["resident_nbytes"]
    assert 4 * 576 < written["hop_nbytes_per_token"] < 4 * 576 + 120
    assert written["avg_ts"] > 0
    drafts = ["--pipeline", "speculative", "--draft-len", "2", "--draft-model", "self"]
    done = start(3, *bench, *drafts, "--draft-rank", "2", "--layers", "even")
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)[1]
    # Of a run: to the other stage and back, and a draft that was asked for.
    assert (written["runs"], 12 * written["messages_per_token"]) == (4, 16)
    assert written["layers"] == [15, 15, 0]
    bench[-1] = "md"
    table, _ = run(*bench, "--pipeline", "pipeinfer", "--stages", "2")
    assert " 15+15 | " in table
    assert " pp40 | " in table


def test_bench_drafts_by_the_method_that_it_is_given(
    run: Run, start: Start, smollm2: str, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text(4 * f"{TEXT} ")
    bench = ["bench", "-m", smollm2, "-t", "1", "-p", "0", "-n", "12", "-r", "1", "--json"]
    bench += ["-f", str(text), "--pipeline", "speculative", "--layers", "even"]
    window = ["--spec", "lookahead", "--lookahead", "4,3,4"]
    told = [
        *(run(*bench, "--stages", "2", *spec)[0] for spec in ([], window)),
        run(*bench, "--stages", "2", "--spec", "pool", "--spec-pool", str(text))[0],
        start(2, *bench, *window).stdout,
    ]
    found = [result for out in told for result in json.loads(out)]
    assert [each["drafter"] for each in found] == ["lookup", "lookahead", "pool", "lookahead"]
    assert [each["explored"] > 0 for each in found] == [False, True, False, True]
    # The text repeats itself, and is in the pool.
    assert all(each["tokens_per_run"] > 1.5 for each in found), found


@pytest.mark.parametrize("where", ["threads", "ranks", "supervised ranks"])
def test_an_interruption_ends_all_stages(start: Start, smollm2: str, where: str) -> None:
    args = answer(smollm2, "-n", "4000", "--pipeline", "pipeinfer", "-c", "0", "--layers", "even")
    if where == "threads":
        done = start(0, *args, "--stages", "3", interrupt="blue")
    else:
        done = start(2, *args, interrupt="blue", supervised=where != "ranks")
    assert done.returncode == 130, done.stderr
    assert "ended by interruption" in done.stderr
    assert "Traceback" not in done.stderr


DRAFTS = ["--pipeline", "auto", "--draft-model", "self"]


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--pipeline", "guess"], 2, "'guess' is not one of"),
        ([], 2, "write one answer together: add --pipeline auto"),
        (["--pipeline", "iterative", "-f", "/nowhere"], 2, "/nowhere: cannot be read"),
        (["--pipeline", "pipeinfer", "--draft-model", "/nowhere"], 3, "/nowhere"),
        (["--pipeline", "auto", "--draft-model", "/nowhere", "--draft-rank", "1"], 3, "rank 1 on "),
        (["--pipeline", "auto", "--draft-model", "self", "--draft-rank", "2"], 2, "of 2 ranks"),
        (["--pipeline", "auto", "--draft-rank", "1"], 2, "--draft-rank needs --draft-model"),
        ([*DRAFTS, "--draft-rank", "1", "--layers", "15,15"], 2, "--layers: expected 0 for rank 1"),
        (
            ["--pipeline", "auto", "--draft-model", "a,b", "--draft-rank", "0,1"],
            2,
            "none of them",
        ),
    ],
)
def test_what_is_wrong_is_told_once_and_by_the_first_rank(
    start: Start, smollm2: str, more: list[str], code: int, says: str
) -> None:
    done = start(2, *answer(smollm2, *more), supervised=not more)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr


PIPEINFER = ["--pipeline", "pipeinfer", "--stages", "2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages", "2"], "--stages needs --pipeline"),
        (["--no-async"], "--no-async needs --pipeline pipeinfer"),
        (["--layers", "1,2"], "--layers needs --pipeline"),
        (["--pipeline", "iterative"], "needs several stages"),
        (["--pipeline", "iterative", "--stages", "0"], "from 1 to"),
        (["--pipeline", "iterative", "--stages", "2", "--numa", "off"], "--numa cannot"),
        (["--pipeline", "iterative", "--stages", "2", "--draft-len", "2"], "--draft-len cannot"),
        (
            ["--pipeline", "speculative", "--stages", "2", "--flight", "2"],
            "--flight needs --pipeline pipeinfer",
        ),
        (["--pipeline", "iterative", "--stages", "2", "--spec", "auto"], "--spec auto"),
        ([*PIPEINFER, "--spec", "lookahead", "--lookahead", "20,5,2"], "at most 64 rows"),
        (
            [*PIPEINFER, "--spec", "lookahead", "--draft-model", "a"],
            "cannot be used with --spec lookahead",
        ),
        ([*PIPEINFER, "--spec", "auto", "--spec-pool", "a"], "use --spec pool"),
        (
            [*PIPEINFER, "--spec-policy", "rejection"],
            "--spec-policy cannot be used with --pipeline",
        ),
        ([*PIPEINFER, "--spec-policy", "typical"], "--spec-policy cannot be used with --pipeline"),
        (
            [*PIPEINFER, "--spec", "lookup", "--spec-n-max", "4"],
            "--spec-n-max cannot be used with --pipe",
        ),
        ([*PIPEINFER, "--draft-layers", "1"], "--draft-layers needs --draft-model self"),
        ([*PIPEINFER, "--draft-model", "self", "--draft-layers", "30"], "has layers 0 to 29"),
        (
            [*PIPEINFER, "--draft-model", "a", "--draft-rank", "1"],
            "cannot be used with --draft-rank",
        ),
        (["--draft-rank", "1"], "--draft-rank needs --pipeline"),
        ([*PIPEINFER, "--draft-model", "a,"], "found 'a,'"),
        (["--pipeline", "iterative", "--stages", "2", "--draft-model", "a"], "cannot be used with"),
        (["--pipeline", "pipeinfer", "--layers", "a"], "expected auto, even, or numbers such as"),
        (["--pipeline", "auto", "--stages", "2", "--draft-len", "2"], "--draft-len cannot"),
        (["--pipeline", "pipeinfer", "--stages", "2", "--layers", "30"], "2 numbers, one per"),
        (["--pipeline", "pipeinfer", "--stages", "2", "--layers", "9,9"], "expected 30 in all"),
        (["--pipeline", "pipeinfer", "--stages", "2", "-c", "9999"], "-c: 9999 tokens"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    run: Run, smollm2: str, options: list[str], message: str
) -> None:
    _, err = run("generate", "-m", smollm2, "-p", "x", *options, code=2)
    assert message in err
