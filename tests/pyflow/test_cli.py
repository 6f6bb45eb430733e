"""The command line: what it prints where, how it ends, and what bad input is told."""

from __future__ import annotations

import errno
import io
import json
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from pyflow import _core, catalogue
from pyflow.cli import COMMANDS, cli, main, options
from pyflow.cli.bench import _range
from pyflow.errors import FormatError, PyflowError, ResourceError, UnsupportedError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fake_model: Any
) -> Run:
    """run(*args, model=..., stdin=...) -> exit code, standard output, standard error."""
    monkeypatch.delenv("PYFLOW_DEBUG", raising=False)

    def run_(*args: str, model: Any = None, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(options, "load", lambda *_: model or fake_model)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(args)
        out, err = capsys.readouterr()
        return code, out, err

    return run_


RAW = ["generate", "--raw", "--temp", "0"]


def test_help_lists_every_command_as_it_describes_itself() -> None:
    context = click.Context(cli, terminal_width=120)
    for name, text in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
        assert text in cli.get_help(context)


def test_help_loads_no_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMMANDS:
        monkeypatch.setitem(sys.modules, f"pyflow.cli.{name}", None)
    code, out, _ = run("--help")
    assert code == 0
    assert "generate" in out
    assert run()[0] == 0


def test_version_is_told(run: Run) -> None:
    code, out, _ = run("--version")
    assert (code, out.split()[0]) == (0, "pyflow")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run: Run, name: str) -> None:
    code, out, _ = run(name, "-h")
    assert code == 0
    assert "Usage: pyflow" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["genrate"], "did you mean 'generate'"),
        (["zzz"], "there are chat, generate"),
        (["generate", "-p", "x", "--tempp", "1"], "--temp"),
        (["generate", "-p", "x", "-t", "0"], "-t"),
        (["generate", "-p", "x", "-t", "many"], "-t"),
        (["generate", "-p", "x", "-n", "0"], "expected 1 to 2147483647, or -1"),
        (["generate", "-p", "x", "-n", "9" * 20], "expected 1 to 2147483647, or -1"),
        (["generate", "-p", "x", "--temp", "-1"], "--temperature: expected 0"),
        (["generate", "-p", "x", "--top-p", "nan"], "--top-p: expected"),
        (["generate", "-p", "x", "--seed", "-2"], "--seed: expected 0 to 2^64 - 1, or -1 to draw"),
        (["generate", "-p", "x", "--seed", str(1 << 64)], "--seed: expected 0 to 2^64 - 1, or -1"),
        (["generate", "-p", "x", "--repeat-last-n", "-2"], "--repeat-last-n: expected"),
        (["generate", "-p", "x", "-l", "999999+1"], "--logit-bias: expected a token from 0 to 258"),
        (["generate", "-p", "x", "-c", "1"], "-c: a context of 1 token"),
        (["generate", "-p", "x", "-m", ""], "'--model': expected some text"),
        (["generate", "--stop"], "(see 'pyflow generate --help')"),
        (["generate", "-f", "/dev/zero"], "/dev/zero: has more than"),
        (["generate", "-f", "a\0b"], "cannot be read: embedded null byte"),
        (["generate", "-p", "x", "-l", "15043"], "--logit-bias: expected TOKEN+BIAS"),
        (["generate", "-p", "x", "-l", "a+1"], "--logit-bias: expected TOKEN+BIAS"),
        (["generate", "-p", "x", "--stop", ""], "--stop"),
        (["generate", "-p", "x", "--logprobs", "3"], "add --json"),
        (
            ["generate", "-p", "x", "-c", "8193"],
            "-c: 8193 tokens of context are more than the 8192",
        ),
        (["generate", "-p", ""], "prompt is empty"),
        (["generate", "-p", " \n"], "prompt is empty"),
        (["generate", "-p", "a\udcffb"], "-p: byte 1 (0xff) is not UTF-8"),
        (["generate"], "prompt is empty"),
        (["generate", "-f", "/no/such/file"], "/no/such/file: cannot be read: No such file"),
        (["generate", "-f", "/"], "/: cannot be read: Is a directory"),
        (["generate", "-f", "x", "-"], "leave one out"),
        (["generate", "--jsonl", "-p", "x"], "--jsonl needs -f"),
        (["generate", "--cache-type", "q4_0", "-p", "x"], "f16"),
        (["chat"], "standard input is empty"),
        (["chat", "-sys", "\udc80"], "standard input is empty"),
        (["inspect", "x", "-c", "5"], "--memory"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (["bench", "-p", "5-1"], "expected numbers"),
        (["bench", "-t", "0"], "expected 1 or more"),
        (["bench", "--rows", "0"], "expected 1 or more"),
        (["bench", "--rows", "1,513"], "expected at most 512, found 513"),
        (["bench", "--rows", "1", "-d", "1,8192"], "8193 tokens of context are more than the 8192"),
        (["bench", "-t", "5000"], "expected at most 1024, found 5000"),
        (["bench", "-p", "1-1000000000"], "expected at most 1000 numbers"),
        (["bench", "foo"], "no command is called 'foo'; there are spec"),
        (["bench", "-p", "8", "spec"], "-p stands before 'spec'"),
        (["bench", "spec"], "Missing option '--prompts'"),
        (["eval", "foo"], "no command is called 'foo'; there are ppl (see 'pyflow eval --help')"),
        (["eval", "ppl", "-f"], "(see 'pyflow eval ppl --help')"),
        (["eval", "ppl"], "--file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert "--help')" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PyflowError("a\nb"), 1),
        (FormatError("a b"), 3),
        (ResourceError("a b"), 4),
        (MemoryError(), 4),
        (OSError(5, "a b"), 1),
        (RuntimeError("a b"), 1),
        (UnsupportedError("PYFLOW_ISA=x: no such kernel table"), 2),
        (PyflowError("\x1b[2Jx\x9b"), 1),
    ],
)
def test_errors_end_in_their_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(catalogue, "resolve", fail)
    found, out, err = run("inspect", "x")
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    assert err.strip().isprintable()
    assert "Traceback" not in err
    monkeypatch.setenv("PYFLOW_DEBUG", "1")
    assert main(["inspect", "x"]) == code


def _of(cause: BaseException) -> ImportError:
    error = ImportError("initialization failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), _of(KeyboardInterrupt())])
def test_an_interruption_is_told_as_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(catalogue, "resolve", fail)
    code, out, err = run("inspect", "x")
    assert (code, out, err.strip()) == (130, "", "interrupted")


def test_no_answer_is_told_on_a_line_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    _, _, err = run("rm", "smollm2")
    assert err.endswith("\nerror: no answer was given\n")


def test_a_command_with_commands_below_prints_its_help(run: Run) -> None:
    code, out, err = run("eval")
    assert (code, err) == (0, "")
    assert "Usage: pyflow eval" in out
    assert "ppl" in out


def test_a_full_disk_is_told_with_the_output_that_it_took(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    code, _, err = run("list")
    assert (code, err) == (1, "error: standard output: No space left on device\n")


def test_json_has_no_infinity(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pyflow.quant import perplexity

    found = perplexity.Perplexity(ppl=2.0, stderr=math.inf, chunks=(2.0,), tokens=1, seconds=1.0)
    monkeypatch.setattr(perplexity, "perplexity", lambda *_, **__: found)
    (tmp_path / "x").write_text("x")
    code, out, _ = run("eval", "ppl", "-f", str(tmp_path / "x"), "--json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail)["stderr"] is None


def test_debugging_shows_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFLOW_DEBUG", "1")
    assert main(["inspect", "/no/such/file"]) != 0
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "closed")

        def fileno(self) -> int:
            return self.target.fileno()

    with Path("/dev/null").open("w") as target:
        closed = Closed()
        closed.target = target  # type: ignore[attr-defined]
        monkeypatch.setattr(sys, "stdout", closed)
        code, _, err = run(*RAW, "-p", "Hi", "-n", "3")
    assert (code, err) == (0, "")


def test_text_goes_to_stdout_and_the_rest_to_stderr(run: Run, saying: Any) -> None:
    code, out, err = run(*RAW, "-p", "Hi", model=saying("Hi", "there"))
    assert (code, out) == (0, "there\n")
    assert err.count("\n") == 1
    assert "prompt 3 tokens" in err
    assert "generated 6 tokens" in err
    assert "ended by the model" in err


def test_a_line_end_is_added_only_where_there_is_none(run: Run, saying: Any) -> None:
    assert run(*RAW, "-p", "Hi", model=saying("Hi", "there\n"))[1] == "there\n"


def test_the_seed_is_told_where_it_was_drawn_and_matters(run: Run) -> None:
    _, first, err = run("generate", "--raw", "-p", "Hi")
    seed = next(line for line in err.splitlines() if line.startswith("seed ")).split()[1]
    _, second, err = run("generate", "--raw", "-p", "Hi", "--seed", seed)
    assert second == first
    assert "seed" not in err
    assert "seed" not in run(*RAW, "-p", "Hi")[2]


def test_the_prompt_comes_from_argument_file_or_stdin(
    run: Run, saying: Any, tmp_path: Path
) -> None:
    file = tmp_path / "prompt"
    file.write_text("Grüße\n")
    for args in (["-p", "Grüße"], ["-f", str(file)], ["-"], ["-f", "-"], []):
        model = saying("Grüße", "ja")
        assert run(*RAW, *args, model=model, stdin="Grüße\n".encode())[:2] == (0, "ja\n")
    model = saying("Sum up:\nGrüße", "ja")
    assert run(*RAW, "-p", "Sum up:", "-", model=model, stdin="Grüße\n".encode())[1] == "ja\n"


def test_bad_text_is_named_with_its_place(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"abc\xfe")
    code, _, err = run(*RAW, "-f", str(file))
    assert code == 2
    assert "byte 3 (0xfe) is not UTF-8" in err
    assert "standard input: byte 0" in run(*RAW, "-", stdin=b"\x80")[2]


def test_the_template_is_used_where_there_is_one(run: Run, fake_model: Any) -> None:
    def prompt_of(*args: str) -> list[int]:
        code, out, _ = run("generate", "-p", "Hi", "-n", "1", "--json", *args)
        assert code == 0
        return json.loads(out)["prompt_tokens"]  # type: ignore[no-any-return]

    asked = fake_model.chat_template.encode([{"role": "user", "content": "Hi"}])
    assert prompt_of() == prompt_of("--chat") == asked
    assert prompt_of("--raw") == [256, *b"Hi"]
    fake_model.chat_template = None
    assert prompt_of() == [256, *b"Hi"]
    code, _, err = run("generate", "-p", "Hi", "--chat")
    assert code == 3
    assert "--raw" in err


def test_json_is_one_object_with_everything(run: Run, saying: Any) -> None:
    args = ["-p", "Hi", "--json", "--logprobs", "2", "--stop", "ere", "--seed", "9"]
    code, out, _ = run(*RAW, *args, model=saying("Hi", "there"))
    assert code == 0
    result = json.loads(out)
    assert result["text"] == "th"
    assert result["prompt_tokens"] == [256, *b"Hi"]
    assert result["tokens"] == list(b"there")
    assert (result["stop_reason"], result["seed"]) == ("stop", 9)
    assert result["timings"].keys() == {
        "load_ms",
        "prompt_n",
        "prompt_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
    }
    assert [place["text"] for place in result["logprobs"]] == list("there")
    assert [len(place["top"]) for place in result["logprobs"]] == [2] * 5
    assert result["logprobs"][0]["top"][0]["id"] == ord("t")


def test_json_lines_run_as_one_batch(run: Run, fake_model: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"One"\n\n{"prompt": "Two", "id": 7}\n"One"\n')
    code, out, err = run("generate", "--raw", "--jsonl", "-f", str(file), "-n", "5", "--seed", "1")
    assert code == 0
    results = [json.loads(line) for line in out.splitlines()]
    assert [bytes(r["prompt_tokens"][1:]).decode() for r in results] == ["One", "Two", "One"]
    assert len(fake_model.contexts) == 1
    assert "3 prompts" in err


def test_only_a_line_feed_ends_a_line_of_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"a\u2028b\u0085c"\r\n"d"\n', newline="")
    code, out, _ = run("generate", "--raw", "--jsonl", "-f", str(file), "-n", "1")
    assert code == 0
    told = [bytes(json.loads(line)["prompt_tokens"][1:]).decode() for line in out.splitlines()]
    assert told == ["a\u2028b\u0085c", "d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a"\n{bad\n', "line 2: is not JSON"),
        ("5\n", "line 1: expected a text"),
        ('""\n', "line 1: expected a text"),
        ('{"text": "a"}\n', "line 1: expected a text"),
        ("\n", "expected at least one prompt"),
        pytest.param('"a"\n' + "[" * 99999, "line 2: is nested too deeply", id="deep"),
    ],
)
def test_bad_json_lines_are_named(run: Run, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    code, _, err = run("generate", "--jsonl", "-f", str(file))
    assert code == 2
    assert message in err


def test_a_prompt_longer_than_the_context_is_refused(run: Run) -> None:
    code, out, err = run(*RAW, "-p", "x" * 50, "-c", "40")
    assert (code, out) == (1, "")
    assert "51 tokens, the context holds 40" in err


def test_context_size_0_is_the_models_own(run: Run, fake_model: Any) -> None:
    run(*RAW, "-p", "Hi", "-c", "0")
    assert fake_model.contexts[-1].n_ctx == 8192


def test_ctrl_c_ends_with_what_there_is(run: Run, saying: Any) -> None:
    model = saying("Hi", "abcdefgh")
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            signal.raise_signal(signal.SIGINT)

    make = model.context

    def context(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        made.before_call = interrupt
        return made

    model.context = context
    before = signal.getsignal(signal.SIGINT)
    code, out, err = run(*RAW, "-p", "Hi", model=model)
    assert (code, out) == (130, "abc\n")
    assert "interruption" in err
    assert signal.getsignal(signal.SIGINT) is before


def test_chat_answers_what_is_piped_in(run: Run, fake_model: Any) -> None:
    code, out, err = run("chat", "--temp", "0", "-sys", "Be brief.", stdin=b"Who?\nWhat?\n")
    assert code == 0
    assert out.endswith("\n")
    (context,) = fake_model.contexts
    read = bytes(t for t in context.cells[0].values() if t < 256).decode()
    assert read.startswith("system:Be brief.user:Who?\nWhat?assistant:")
    assert "answer" in err


def test_chat_tells_a_bad_system_prompt(run: Run) -> None:
    code, _, err = run("chat", "-sys", "\udc80", stdin=b"Hi")
    assert code == 2
    assert "-sys: byte 0 (0x80)" in err


def test_the_default_model_is_the_pulled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: set[str] = set()
    monkeypatch.setattr(catalogue.Entry, "pulled", property(lambda self: self.name in pulled))
    with pytest.raises(PyflowError, match="pyflow pull smollm2"):
        options.default_model()
    pulled.add("gemma3")
    assert options.default_model() == "gemma3"
    pulled.add("qwen2.5-coder-1.5b")
    with pytest.raises(click.UsageError, match="several models are pulled"):
        options.default_model()
    pulled.add("smollm2")
    assert options.default_model() == "smollm2"


def test_numbers_of_bench_may_be_ranges() -> None:
    assert [list(_range(t)) for t in ("5", "1-4", "1-9*2", "2-9+3")] == [
        [5],
        [1, 2, 3, 4],
        [1, 2, 4, 8],
        [2, 5, 8],
    ]
    for text in ("", "a", "4-1", "1-8*1", "1-8+0", "0-3*2"):
        with pytest.raises(ValueError):
            list(_range(text))


def test_doctor_says_what_it_found(run: Run) -> None:
    code, out, _ = run("doctor", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["isa"] in found["kernels"]
    assert found["isa"] == _core.cpu_info()["isa"]
    assert found["threads"] >= 1
    assert found["threads_why"]
    assert found["read_bandwidth"] > 1e8
    code, out, _ = run("doctor")
    assert code == 0
    for word in ("CPU", "features", "kernels", "threads", "memory", "bandwidth"):
        assert f"{word} " in out
