"""The rings name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import rings

TESTS = Path(__file__).parent


@pytest.mark.parametrize("entry", [*rings.SLOW, *rings.QUICK])
def test_an_entry_is_a_file_or_a_function_of_it(entry: str) -> None:
    file, _, function = entry.partition("::")
    text = (TESTS / file).read_text()
    assert not function or re.search(rf"^def {function.partition('[')[0]}\(", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/a/test_b.py::test_c", True),
        ("tests/a/test_b.py::test_c[0-x]", True),
        ("tests/a/test_b.py::test_cd", False),
        ("tests/a/test_d.py::test_e", True),
        ("tests/a/test_d.pyx::test_e", False),
    ],
)
def test_an_entry_stands_for_whole_names(nodeid: str, expected: bool) -> None:
    assert rings.is_in(("a/test_b.py::test_c", "a/test_d.py"), nodeid) is expected
