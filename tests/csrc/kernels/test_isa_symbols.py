"""No code compiled for a newer CPU can replace baseline code (contract C7).

The linker keeps one copy of an inline or template function. If a file compiled with instruction-set
flags offers one, an old CPU may be given it, and stops at an illegal instruction.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[3] / "build"
# What the build left behind; without a build tree there is nothing to test.
# amx_emulated is compiled for every CPU.
OBJECTS = sorted(
    path
    for path in BUILD.glob("**/CMakeFiles/isa_*.dir/**/*.o")
    if "isa_amx_emulated.dir" not in str(path)
)


def exported(path: Path) -> list[str]:
    command = ["nm", "--demangle", "--defined-only", "--extern-only", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda p: str(p.relative_to(BUILD)))
def test_an_instruction_set_exports_its_table_and_nothing_else(path: Path) -> None:
    (isa,) = re.findall(r"isa_(\w+)\.dir", str(path))
    assert exported(path) == [f"T pyflow::{path.parent.name}_{isa}()"]
