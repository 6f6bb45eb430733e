"""`pyflow translate`, and `pyflow generate` with sources and beams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pyflow
from pyflow.cli import main
from pyflow.generate.beams import Beams
from pyflow.sampling import SamplingParams

from .. import tiny_models
from ..generate import converted, students

Run = Callable[..., tuple[int, str, str]]
TEXTS = ["w5 w17 w33", "w9", "w44 w2 w61 w80 w7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translate") / "student"
    students.write_folder(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line: exit code, output, errors."""

    def run_(*args: str) -> tuple[int, str, str]:
        code = main([*args])
        return code, *capsys.readouterr()

    return run_


def test_lines_come_as_each_text_gives_alone(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    with pyflow.load(folder) as model:
        greedy = SamplingParams(temperature=0)
        wanted = [model.generate(text, n_predict=9, sampling=greedy).text for text in TEXTS]
    command = ["translate", "-m", str(folder), "-n", "9"]
    code, out, _ = run(*command, "-f", str(tmp_path / "texts"))
    assert (code, out.split("\n")) == (0, [*(text.strip() for text in wanted), ""])
    (tmp_path / "gaps").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n")
    code, out, _ = run(*command, "-f", str(tmp_path / "gaps"))
    assert (code, out.split("\n")) == (0, [wanted[0].strip(), "", wanted[1].strip(), ""])
    with (tmp_path / "gaps").open() as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", file)
        assert run(*command, "-") == (0, out, "")
    code, out, _ = run(*command, *TEXTS[:2])
    assert (code, out.split("\n")) == (0, [*(text.strip() for text in wanted[:2]), ""])
    (tmp_path / "lines").write_text("".join(f'{{"text": "{text}"}}\n' for text in TEXTS))
    code, out, _ = run(*command, "--jsonl", "-f", str(tmp_path / "lines"))
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert [line["text"].strip() for line in lines] == [text.strip() for text in wanted]


def test_generate_prints_the_best_of_beams(run: Run, folder: Path) -> None:
    with pyflow.load(folder) as model:
        ((best,),) = model.beam_search(TEXTS[0], Beams(n=3), n_predict=8)
        text, tokens = model.text_of(best.tokens)
    command = ["-m", str(folder), "--beams", "3", "-n", "8"]
    code, out, _ = run("generate", *command, "-p", TEXTS[0], "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["text"], found["tokens"], found["score"]) == (text, tokens, best.score)
    code, out, _ = run("translate", *command, TEXTS[0])
    assert (code, out) == (0, text.strip() + "\n")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--spec", "lookup"], "not a draft"),
        (["--jsonl"], "--jsonl"),
        (["--stop", "w5"], "--stop"),
        (["-l", "5+1"], "--logit-bias"),
        (["--temperature", "0"], "--temp"),
        (["--banned-string", "w5"], "--banned-string"),
        (["--fsd", "1"], "--fsd"),
    ],
)
def test_beams_are_refused_beside_what_they_cannot_have(
    run: Run, folder: Path, more: list[str], says: str
) -> None:
    code, _, err = run("generate", "-m", str(folder), "--beams", "2", "-p", "w5", *more)
    assert code == 2
    assert says in err


def test_languages_are_those_of_python(run: Run, tmp_path: Path) -> None:
    config, tensors = converted.model("m2m_100")
    folder = converted.folder(tmp_path / "model", config, tensors)
    students.write_tokenizer(folder / "tokenizer.json", 87)
    students.add_languages(folder / "tokenizer.json", ["__en__", "__de__", "__fr__"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pyflow.load(folder) as model:
        spoken = {"from_language": "fr", "to_language": "de"}
        ((best,),) = model.beam_search("w5 w9", Beams(n=2), n_predict=6, **spoken)
        text, tokens = model.text_of(best.tokens)
    command = ["-m", str(folder), "--beams", "2", "-n", "6", "--from", "fr", "--to", "de"]
    code, out, _ = run("generate", *command, "-p", "w5 w9", "--json")
    assert (code, json.loads(out)["tokens"]) == (0, tokens)
    code, out, _ = run("translate", *command, "w5 w9")
    assert (code, out) == (0, text.strip() + "\n")
    options = ["generate", "-m", str(folder), "-p", "w5 w9", "--to", "de"]
    code, _, err = run(*options, "--special", "--raw")
    assert (code, "--special" in err) == (2, True)
    code, out, _ = run(*options, "--temp", "0", "-n", "4")
    assert code == 0


def test_other_models_and_unknown_languages_are_refused(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    decoder = tiny_models.write_model(path, n_layers=1, window=0, has_tokenizer=True)
    code, _, err = run("translate", "-m", str(decoder), "a text")
    assert (code, "pyflow generate" in err) == (3, True)
    for command in (["bench"], ["eval", "ppl", "-f", __file__], ["generate", "--chat", "-p", "w5"]):
        code, _, err = run(*command, "-m", str(folder))
        assert (code, "pyflow translate" in err) == (3, True)
    code, _, err = run("translate", "-m", str(folder), "--to", "xx", "w5")
    assert (code, "'xx'" in err) == (1, True)
