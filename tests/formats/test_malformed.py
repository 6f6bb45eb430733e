"""Whatever a checkpoint holds, it is opened, or refused by an error that says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyflow.formats
import pytest

from pyflow import errors


def test_a_malformed_file_is_refused_with_its_fault(malformed_other: tuple[Path, Any]) -> None:
    path, case = malformed_other
    with pytest.raises(errors.PyflowError) as caught:
        pyflow.formats.open(path)
    message = str(caught.value)
    assert type(caught.value).__name__ == case.error, message
    assert message.startswith(str(path.parent))
    assert message.isprintable()
    assert len(message) < 1000
    for words in case.mentions:
        assert words in message, message
    assert any(words in message for words in case.any_of), message


@pytest.mark.slow
def test_most_say_where_what_was_expected_and_found(others: Any, tmp_path: Path) -> None:
    shape = re.compile(r".+: .+ at byte [\d,]+: expected .+, found .+; .+")
    for name, cases, beside in others.values():
        for other, data in beside.items():
            (tmp_path / other).write_bytes(data)
        without = 0
        for case in cases:
            (tmp_path / name).write_bytes(case.data)
            with pytest.raises(errors.PyflowError) as caught:
                pyflow.formats.open(tmp_path / name)
            without += not shape.fullmatch(str(caught.value))
        assert without <= 8, name  # what concerns another file or all of it


def test_the_corpora_are_no_smaller_than_promised(others: Any) -> None:
    for _, cases, _ in others.values():
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)
    assert len(others["safetensors"][1]) >= 100
