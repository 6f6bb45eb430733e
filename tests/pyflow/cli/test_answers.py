"""The command line: what generate and chat print, and what they make of their input."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
RAW = ["generate", "--raw", "--temp", "0"]


def test_text_goes_to_stdout_and_the_rest_to_stderr(run: Run, saying: Any) -> None:
    code, out, err = run(*RAW, "-p", "Hi", model=saying("Hi", "there"))
    assert (code, out) == (0, "there\n")
    assert err.count("\n") == 1
    assert "prompt 3 tokens" in err
    assert "generated 6 tokens" in err
    assert "ended by the model" in err


def test_a_single_token_has_no_speed(run: Run) -> None:
    err = run(*RAW, "-p", "Hi", "-n", "1")[2]
    assert "generated 1 token;" in err


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
    assert [r.get("id") for r in results] == [None, 7, None]
    assert len(fake_model.contexts) == 1
    assert "3 prompts" in err


def test_only_a_line_feed_ends_a_line_of_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"a\u2028b\u0085c"\r\n"d"\n', newline="")
    code, out, _ = run("generate", "--raw", "--jsonl", "-f", str(file), "-n", "1")
    assert code == 0
    told = [bytes(json.loads(line)["prompt_tokens"][1:]).decode() for line in out.splitlines()]
    assert told == ["a\u2028b\u0085c", "d"]
    file.write_text('"a"', "utf-8-sig")
    code, out, _ = run("generate", "--raw", "--jsonl", "-f", str(file), "-n", "1")
    assert bytes(json.loads(out)["prompt_tokens"][1:]).decode() == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a"\n{bad\n', "line 2, column 2: is not JSON"),
        ("5\n", "line 1: expected a text"),
        ('""\n', "line 1: expected a text"),
        ("{}\n", "line 1: expected a text"),
        ('"a"\n{"prompt": "b", "seed": 3}\n', "line 2: unknown key 'seed'"),
        ('{"Promt": "a"}\n', "unknown key 'Promt' (did you mean prompt?)"),
        ("\n", "expected at least one prompt"),
        ('{"prompt": "a", "prompt": "b"}\n', "line 1: is not JSON: the key 'prompt'"),
        ('"a\\ud800"\n', r"line 1: expected Unicode text, found half a character, \ud800"),
        ('{"prompt": "a", "id": 1e999}\n', "line 1: is not JSON"),
        ('{"prompt": "a", "id": NaN}\n', "line 1: is not JSON: expected a finite number"),
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
    assert "-c" in err
    assert "8,192" in err
    code, out, err = run(*RAW, "-p", "x" * 9000)
    assert (code, out) == (1, "")
    assert "9,001 tokens, the context holds 8,192" in err
    assert "-c" not in err


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
    given = ["--temp", "0", "-sys", "Be brief.", "--show-timings"]
    code, out, err = run("chat", *given, stdin=b"Who?\nWhat?\n")
    assert code == 0
    assert out.endswith("\n")
    (context,) = fake_model.contexts
    read = bytes(t for t in context.cells[0].values() if t < 256).decode()
    assert read.startswith("system:Be brief.user:Who?\nWhat?assistant:")
    assert "answer" in err


def test_chat_with_the_guardrail_begins_with_it(run: Run, fake_model: Any) -> None:
    assert run("chat", "--guardrail", "-sys", "Be brief.", stdin=b"Who?")[0] == 0
    (context,) = fake_model.contexts
    read = bytes(t for t in context.cells[0].values() if t < 256).decode()
    assert read.startswith("guarded:system:Be brief.user:Who?assistant:")


def test_chat_tells_a_bad_system_prompt(run: Run) -> None:
    code, _, err = run("chat", "-sys", "\udc80", stdin=b"Hi")
    assert code == 2
    assert "-sys: byte 0 (0x80)" in err
