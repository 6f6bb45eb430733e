"""What is asked: system messages, templates, prefills, control tokens, gaps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyflow.chat.infill import infill
from pyflow.cli.options.asking import Templating, raw_tokens, text_of, unescape
from pyflow.errors import UnsupportedError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def asked(run: Run, fake_model: Any) -> Callable[..., str]:
    """The text that the model read."""

    def read(*args: str, **how: Any) -> str:
        code, _, err = run("generate", "--temp", "0", "-n", "1", *args, **how)
        assert code == 0, err
        cells = fake_model.contexts[-1].cells[0]
        return bytes(cells[i] for i in sorted(cells) if cells[i] < 256).decode()

    return read


def test_system_messages_prefills_and_templates_become_one_text(
    asked: Callable[..., str], tmp_path: Path
) -> None:
    assert asked("-p", "Hi", "-sys", "Be brief.", "--prefill", "Sure") == (
        "system:Be brief.user:Hiassistant:Sure"
    )
    template = tmp_path / "t"
    template.write_text("{{ mood }}|{{ n + 1 }}|{{ messages[0].content }}")
    given = [
        "--template-var",
        "mood=mild",
        "--template-var",
        "n=2",
        "--chat-template",
        str(template),
    ]
    assert asked("-p", "Hi", *given) == "mild|3|Hi"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["mod=mild"], ["mod", "mood"]),
        (["messages=[]"], ["messages"]),
        (["add_generation_prompt=false"], ["add_generation_prompt"]),
        (["bos_token=x"], ["bos_token"]),
        (["range=1"], ["range"]),
        (["own=1"], ["own"]),
        (["mood=a", "mood=b"], ["mood", "'a'", "'b'"]),
    ],
)
def test_variables_without_an_effect_are_refused(
    run: Run, tmp_path: Path, given: list[str], named: list[str]
) -> None:
    template = tmp_path / "t"
    template.write_text("{% set own = mood %}{{ own }}{{ range(1) }}{{ messages[0].content }}")
    options = [part for one in given for part in ("--template-var", one)]
    code, _, err = run("generate", "-p", "Hi", "--chat-template", str(template), *options)
    assert code == 2
    assert all(name in err for name in ["--template-var", *named])


def test_options_of_templates_need_one(run: Run, fake_model: Any) -> None:
    fake_model.chat_template = None
    for options in (["-sys", "x"], ["--prefill", "x"], ["--template-var", "a=1"]):
        code, _, err = run("generate", "-p", "Hi", *options)
        assert code == 3
        assert fake_model.name in err


def test_texts_come_from_files_and_with_escapes(asked: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_text("a\\n\n")
    assert asked("--raw", "-p", f"@{file}") == "a\\n"
    assert asked("--raw", "-p", "@@you") == "@you"
    assert asked("--raw", "-p", r"a\tb\\c\u00e9\q", "-e") == "a\tb\\cé\\q"
    assert asked("--raw", "-p", r"a\tb") == r"a\tb"


def test_stops_have_escapes_too() -> None:
    how = Templating(system=None, path=None, variables={}, escape=True)
    assert how.stops([r"\n\n", "x"]) == ["\n\n", "x"]
    assert unescape(r"\U0001F600\x41\z") == "😀A\\z"
    assert text_of("@@a", "-p", False) == "@a"


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--raw", "-sys", "x"], ["--raw", "-sys"]),
        (["--special"], ["--special", "--raw"]),
        (["--template-var", "1a=2"], ["--template-var", "1a=2"]),
        (["--prefix", "a", "--chat"], ["--prefix"]),
        (["-p", "@"], ["-p", "@@"]),
        (["--quantize", ""], ["--quantize"]),
        (["--chat-template", "/dev/null"], ["--chat-template", "/dev/null", "device"]),
        (["--chat-template", "/"], ["--chat-template", "folder"]),
        (["--top-k", "99999999999"], ["--top-k", "0 to"]),
    ],
)
def test_options_that_do_not_go_together(run: Run, args: list[str], names: list[str]) -> None:
    code, _, err = run("generate", "-p", "Hi", *args)
    assert code == 2
    assert all(name in err for name in names)


def test_control_tokens_of_a_raw_text_are_read_when_asked_for(
    tokenizer_of: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tokenizer_of("smollm2")
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert raw_tokens(tokenizer, text, True) == [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]
    assert not capsys.readouterr().err
    assert len(raw_tokens(tokenizer, text, False)) == 28
    assert "<|im_start|>" in capsys.readouterr().err


def test_a_gap_is_asked_for_as_the_model_was_trained(tokenizer_of: Callable[[str], Any]) -> None:
    # Qwen 2.5 Coder: <|fim_prefix|> 151659, <|fim_middle|> 151660, <|fim_suffix|> 151661.
    tokenizer = tokenizer_of("qwen2.5-coder-1.5b")
    ids = infill(tokenizer, "a = <|fim_middle|>", "\n", source="m")
    assert [ids[0], ids[-1], ids[-3]] == [151659, 151660, 151661]
    assert ids.count(151660) == 1
    assert tokenizer.decode(ids) == "<|fim_prefix|>a = <|fim_middle|><|fim_suffix|>\n<|fim_middle|>"
    with pytest.raises(UnsupportedError, match="smollm2"):
        infill(tokenizer_of("smollm2"), "a", "b", source="smollm2")


def test_a_gap_is_filled(run: Run, fake_model: Any) -> None:
    code, _, err = run("generate", "--prefix", "a", "--json")
    assert code == 3
    assert json.loads(_)["error"]["type"] == "UnsupportedError"
    assert fake_model.name in err
