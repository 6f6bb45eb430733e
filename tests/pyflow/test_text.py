"""Text on its way to the screen."""

from __future__ import annotations

from pathlib import Path

from pyflow.specs.language.facts import GgufSource
from pyflow.text import counted, plural, printable


def test_what_a_terminal_obeys_is_escaped_and_letters_stay() -> None:
    assert printable("Größe 你好 👍") == "Größe 你好 👍"
    assert printable("\x1b[2J\r\n\x9b\u202e\udcff") == r"\x1b[2J\r\n\x9b\u202e\udcff"
    assert printable("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


def test_the_name_of_a_model_can_be_shown_and_saved() -> None:
    given = {"general.architecture": "llama", "general.name": "a\x1b[2J\nb\udcff"}
    assert GgufSource(Path("x.gguf"), given).name == r"a\x1b[2J\nb\udcff"


def test_nouns_agree_with_their_number() -> None:
    assert [counted(n, "chunk") for n in (0, 1, 2)] == ["0 chunks", "1 chunk", "2 chunks"]
    assert plural(1, "layer") + plural(2, "layer") == "layerlayers"
