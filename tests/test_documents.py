"""What the documents say exists: links, commands with their flags, and the README's Python."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COMMAND_LINES = sorted(
    {line for path in DOCUMENTS for line in re.findall(r"^ {4}(pyflow .*)", path.read_text(), re.M)}
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    assert not [target for target in targets if not (path.parent / target).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_sources_exist(path: Path) -> None:
    names = re.findall(
        r"\b((?:csrc|pyflow|tests|bench)/[\w/]+\.(?:cpp|h|inl|def|py))\b", path.read_text()
    )
    assert not [n for n in names if not (ROOT / n).exists() and not (ROOT / "tests" / n).exists()]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_and_flags_exist(line: str) -> None:
    from pyflow.cli import cli

    words = shlex.split(line, comments=True)[1:]
    command: click.Command | None = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    own = itertools.takewhile(lambda word: word != "--", words)  # what follows is for a program
    flags = {word for word in own if word.startswith("-") and not word[1:].isdecimal()}
    assert flags <= known


def test_the_python_of_the_readme_runs(
    model_path: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = model_path("smollm2")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code.replace("model.gguf", str(path)), "README.md", "exec"), names)
    assert "Paris" in capsys.readouterr().out
    assert getattr(names["logits"], "shape", ()) == (3, 49152)


def test_the_changelog_is_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.count("\n") < 110
    entries = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    assert not [entry for entry in entries if len(entry.split()) > 25]
