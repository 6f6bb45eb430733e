"""The commands about models and tokens."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pyflow import catalogue
from pyflow.cli import list as list_command
from pyflow.cli import pull, rm, tokenize
from pyflow.errors import FormatError


def run(command: click.Command, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(command, arguments, input=stdin, catch_exceptions=False)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PYFLOW_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("empty_cache")
def test_list_shows_what_can_be_pulled() -> None:
    rows = json.loads(run(list_command.command, "--json").stdout)
    assert [row["name"] for row in rows] == [
        "smollm2",
        "gemma3",
        "qwen2.5-coder-1.5b",
        "minilm",
        "mpnet",
        "marian-en-pt",
        "marian-pt-en",
    ]
    assert {"name", "path", "bytes", "licence", "pulled"} <= rows[0].keys()
    assert not any(row["pulled"] for row in rows)
    text = run(list_command.command).stdout
    assert all(row["name"] in text and row["licence"] in text for row in rows)


@pytest.mark.model
def test_pull_prints_the_path_on_stdout_and_the_licence_on_stderr() -> None:
    catalogue.pull("smollm2")
    result = run(pull.command, "smollm2")
    assert result.stdout == f"{catalogue.entry('smollm2').path}\n"
    assert "Apache-2.0" in result.stderr


@pytest.mark.usefixtures("empty_cache")
def test_pull_refuses_a_name_that_it_does_not_know() -> None:
    for name, near in (("llama", "gemma3"), ("SmolLM-2", "smollm2"), ("a b/c", "'a b/c'")):
        result = run(pull.command, name)
        assert result.exit_code == 2
        assert near in result.stderr


def test_rm_asks_first(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = empty_cache / "models" / "smollm2.gguf"
    model.parent.mkdir()
    model.write_bytes(b"x" * 10)
    monkeypatch.setenv("PYFLOW_CACHE", str(empty_cache))
    assert run(rm.command, "smollm2", stdin=b"n\n").exit_code == 1
    assert model.exists()
    assert run(rm.command, "smollm2", "--yes").exit_code == 0
    assert not model.exists()


@pytest.mark.model
@pytest.mark.parametrize("how", ["-p", "-f", "-f -", "-"])
def test_tokenize_takes_its_text_from_anywhere(how: str, tmp_path: Path) -> None:
    text = "Hello, wörld\n"
    (tmp_path / "text").write_text(text)
    arguments = {
        "-p": ["-p", text],
        "-f": ["-f", str(tmp_path / "text")],
        "-f -": ["-f", "-"],
        "-": ["-"],
    }[how]
    result = run(tokenize.command, "-m", "smollm2", "--json", *arguments, stdin=text.encode())
    found = json.loads(result.stdout)
    assert found["n_tokens"] == len(found["ids"]) == len(found["tokens"])
    assert b"".join(bytes(token["bytes"]) for token in found["tokens"]).decode() == text


@pytest.mark.model
def test_tokenize_obeys_its_flags() -> None:
    def ids(*arguments: str) -> list[int]:
        output = run(tokenize.command, "-m", "gemma3", "--json", "-p", "<eos>", *arguments)
        return list(json.loads(output.stdout)["ids"])

    assert ids("--special") == [2, 1]
    assert ids("--special", "--no-bos") == [1]
    assert 1 not in ids()


@pytest.mark.model
def test_tokenize_shows_one_token_a_line() -> None:
    lines = run(tokenize.command, "-m", "smollm2", "-p", 'a "b"\n👍').stdout.splitlines()
    assert lines[0].split() == ["81", '"a"']
    assert lines[1].split(maxsplit=1)[1] == '" \\""'
    assert "<0x8D>" in lines[-1]


@pytest.mark.model
def test_tokenize_warns_of_bytes_that_the_vocabulary_lacks() -> None:
    result = run(tokenize.command, "-m", "smollm2", "-p", "a\4b")
    assert "no token for 1 of 3 bytes" in result.stderr
    assert run(tokenize.command, "-m", "smollm2", "-p", "ab").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ([], b"", "give the text once"),
        (["-p", "x", "-f", "-"], b"", "give the text once"),
        (["-"], b"abc\xff", "standard input: byte 3 (0xff) is not UTF-8"),
        (["-p", "a\udcff"], b"", "-p: byte 1 (0xff) is not UTF-8"),
        (["-f", "/no/such/file"], b"", "/no/such/file"),
    ],
)
def test_tokenize_refuses_bad_text_in_one_clear_line(
    arguments: list[str], stdin: bytes, message: str
) -> None:
    result = run(tokenize.command, "-m", "smollm2", *arguments, stdin=stdin)
    assert result.exit_code == 2
    assert message in result.stderr


def test_tokenize_without_its_model_says_what_there_is() -> None:
    with pytest.raises(FormatError, match=r"nope\.gguf: no such file"):
        run(tokenize.command, "-m", "nope.gguf", "-p", "x")
