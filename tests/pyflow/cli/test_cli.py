"""The command line: what it prints where, how it ends, and what bad input is told."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pyflow import _core, catalogue
from pyflow.cli import COMMANDS, bench, cli, main
from pyflow.cli.bench import _range, timing
from pyflow.cli.options import model as options
from pyflow.cli.terminal.output import print_json
from pyflow.cluster.supervise.lifeline import Loss
from pyflow.cluster.supervise.verdict import LossError
from pyflow.engine.topology import NUMA_MODES
from pyflow.errors import (
    FormatError,
    PyflowError,
    ResourceError,
    UnsupportedError,
    VariableError,
)

Run = Callable[..., tuple[int, str, str]]


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


@pytest.mark.parametrize("name", ["generate", "chat", "bench"])
def test_help_fits_on_one_screen_and_topics_list_every_option(run: Run, name: str) -> None:
    _, main, _ = run(name, "--help")
    assert len(main.splitlines()) <= 24
    topics = main.rpartition("More: ")[2].split("\n\n")[0].replace(",", " ").split()
    assert topics.pop() == "all"
    texts = [run(name, "--help", topic)[1] for topic in topics]
    _, everything, _ = run(name, "--help", "all")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for param in command.params:
        if isinstance(param, click.Option):
            line = re.compile(rf"^  {param.opts[0]}\b(?!-)", re.MULTILINE)
            assert sum(bool(line.search(text)) for text in texts) == 1
            assert line.search(everything)
    code, _, err = run(name, "--help", "x")
    assert (code, "speculation" in err) == (2, True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PyflowError("a\nb"), 1),
        (FormatError("a b"), 3),
        (ResourceError("a b"), 4),
        (MemoryError(), 4),
        (OSError(5, "a b"), 1),
        (RuntimeError("a b"), 1),
        (VariableError("PYFLOW_ISA=x: no such kernel table"), 2),
        (UnsupportedError("a b"), 3),
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


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["inspect", "/no/such", "--json"], 3, "FormatError"),
        (["inspect", "--json"], 2, "UsageError"),
        (["spec", "check", "/no/such", "--json"], 3, "FormatError"),
        (["generate", "-p", "x", "--json", "--tempp", "1"], 2, "UsageError"),
        (["generate", "--json", "-p", "x", "-c", "8193"], 2, "UsageError"),
        (["generate", "--jsonl", "-f", "/no/such"], 2, "UsageError"),
        (["tokenize", "--json", "-f", "/no/such"], 2, "UsageError"),
        (["quantize", "/no/such", "/tmp/x.gguf", "--type", "q8_0", "--json"], 3, "FormatError"),
        (["eval", "ppl", "-f", "/no/such", "--json"], 2, "UsageError"),
        (["eval", "kld", "--json"], 2, "UsageError"),
        (["bench", "-o", "json", "-p", "0", "-n", "0"], 2, "UsageError"),
        (["bench", "spec", "--output=json", "-n", "1"], 2, "UsageError"),
        (["cluster", "run", "-n", "2", "--", "list", "--json"], 2, "UsageError"),
    ],
)
def test_a_failure_is_one_json_object_where_json_was_asked_for(
    run: Run, args: list[str], code: int, kind: str
) -> None:
    found, out, err = run(*args)
    assert found == code
    assert json.loads(out) == {"error": {"type": kind, "message": err[len("error: ") : -1]}}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ResourceError("a\nb \x1b"), "ResourceError"),
        (LossError(Loss(1, "a", "decode", "it died")), "LostRankError"),
        (MemoryError("a b"), "MemoryError"),
        (json.JSONDecodeError("a b", "", 0), "ValueError"),
        (FileNotFoundError(2, "a b", "c"), "FileNotFoundError"),
    ],
)
def test_json_names_an_error_by_a_class_that_can_be_caught(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(catalogue, "resolve", fail)
    _, out, _ = run("inspect", "x", "--json")
    found = json.loads(out)["error"]
    assert found["type"] == kind
    assert "\n" not in found["message"]


def test_results_before_a_failure_are_the_only_json(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_: object, tests: list[timing.Test], *__: object) -> list[dict[str, object]]:
        if tests[0].n_gen:
            raise ResourceError("out of cells")
        return [{"t_s": 1.0}]

    monkeypatch.setattr(bench, "measure", measured)
    code, out, err = run("bench", "--json", "-p", "8", "-n", "8")
    assert (code, json.loads(out)) == (4, [{"t_s": 1.0}])
    assert err.endswith("error: out of cells\n")


def test_json_that_standard_output_does_not_take_leaves_the_error_and_its_code() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pyflow", "inspect", "/no/such", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "/no/such: no such file" in done.stderr


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
    assert re.search(r"\?[^\n]*\nerror: .*-y .*\n$", err)


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


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"stderr": math.inf, "all": [math.nan, 1.0]})
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail) == {"stderr": None, "all": [None, 1.0]}


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


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["PYFLOW_ISA", "PYFLOW_PREFETCH"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(b"no", "no"), (b"\xff\n", r"\xff\x0a"), (b"x" * 999, "x" * 80 + "...")],
    ids=["word", "bytes", "long"],
)
def test_variables_of_any_bytes_are_refused_in_one_line(
    variable: str, value: bytes, shown: str
) -> None:
    environment = os.environb | {variable.encode(): value}
    command = [sys.executable, "-m", "pyflow", "doctor"]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"error: {variable}={shown}: ")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(("value", "name"), [("0", "none"), ("1", "near"), ("2", "far")])
def test_prefetches_are_those_asked_for(value: str, name: str) -> None:
    program = "from pyflow import _core; print(_core.cpu_info()['prefetches'])"
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYFLOW_PREFETCH": value}
    out = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert out.strip() == name


@pytest.mark.slow  # compiles programs where there is a device
def test_doctor_says_what_it_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("doctor", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["isa"] in found["kernels"]
    assert found["isa"] == _core.cpu_info()["isa"]
    assert found["threads"] >= 1
    assert found["threads_why"]
    assert found["numa"] in NUMA_MODES
    assert found["numa_why"].startswith(f"{found['topology']['memory_nodes']} memory node")
    assert found["read_bandwidth"] > 1e8
    assert found["devices"] or found["devices_missing"]
    for device in found["devices"]:
        assert device["exact"] == (not device["fault"] and not device["error"])
        assert device["error"] or device["read_bandwidth"] > 1e6
    monkeypatch.setattr("pyflow.cli.doctor._examine", lambda: found)
    code, out, _ = run("doctor")
    assert code == 0
    for word in (
        "CPU",
        "features",
        "kernels",
        "prefetch",
        "threads",
        "numa",
        "memory",
        "bandwidth",
        "device",
    ):
        assert word in out


def test_standard_error_that_is_full_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main(["inspect", "/no/such/model"]) == 3
        assert main(["inspect", "--no-such-option"]) == 2
        assert sys.stderr is full
