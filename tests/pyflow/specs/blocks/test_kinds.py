"""The kinds of blocks that Python describes are those that the extension runs."""

from __future__ import annotations

import re
from pathlib import Path

from pyflow.specs.blocks import kinds

BLOCKS = Path(__file__).parents[4] / "csrc/model/blocks"


def test_python_and_cpp_have_the_same_kinds() -> None:
    listed = re.findall(r"^PYFLOW_BLOCK\((\w+), \w+\)$", (BLOCKS / "blocks.def").read_text(), re.M)
    assert list(kinds()) == sorted(listed)
    assert {path.stem for path in BLOCKS.rglob("*.cpp")} >= set(listed)


def test_roles_that_kinds_share_have_one_name_in_gguf() -> None:
    names: dict[str, set[str]] = {}
    for kind in kinds().values():
        for role, name in kind.roles.items():
            names.setdefault(role, set()).add(name)
    assert all(len(found) == 1 for found in names.values()), names
