"""Rooms stay small: lines of a file and of a function, parameters, files in a folder."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ["csrc", "pyflow", "quant", "formats", "bench", "tests", "docs", "wheels"]
KINDS = {".py", ".pyi", ".cpp", ".h", ".inl", ".js", ".css"}

MOST_LINES_OF_FILE = 400
MOST_LINES_OF_FUNCTION = 70
MOST_PARAMETERS = 8
MOST_FILES = 16
# The binding of a sampler has a keyword for each field of SamplingParams.
WIDE = {"pyflow/_core_stubs/sampler.pyi: __init__"}


def sources() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(p for p in found if p.suffix in KINDS and "__pycache__" not in p.parts)


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, lines without decorators, and parameters without self or cls."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            n = len(named) + bool(node.args.vararg) + bool(node.args.kwarg)
            n -= bool(named) and named[0].arg in {"self", "cls"}
            yield node.name, (node.end_lineno or 0) - node.lineno + 1, n


def cpp_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """The same of C++ and JavaScript: a definition begins and ends in column 0."""
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        first = i
        if re.match(r"(?!namespace|struct|class|enum|union|extern|#|//|[}\s]|$)", lines[i]):
            while i + 1 < len(lines) and not lines[i].endswith(("{", "}", ";")):
                i += 1
            head = "\n".join(lines[first : i + 1])
            if head.endswith("{") and "(" in head:
                while i + 1 < len(lines) and not lines[i].startswith("}"):
                    i += 1
                yield lines[first], i - first + 1, _n_parameters(head)
        i += 1


def _n_parameters(head: str) -> int:
    """Commas between the first parentheses, apart from those of templates and defaults."""
    inside, depth = "", 0
    for char in head[head.index("(") :]:
        depth += (char in "(<{[") - (char in ")>}]")
        if depth == 0:
            break
        inside += char if depth == 1 else ""
    return inside.count(",") + bool(inside.strip("( \n"))


def faults(path: Path, text: str) -> Iterator[str]:
    n_lines = text.count("\n")
    if n_lines > MOST_LINES_OF_FILE:
        yield f"{path}: {n_lines} lines, expected at most {MOST_LINES_OF_FILE}"
    functions = python_functions if path.suffix in {".py", ".pyi"} else cpp_functions
    for name, lines, parameters in functions(text):
        if lines > MOST_LINES_OF_FUNCTION:
            yield f"{path}: {name}: {lines} lines, expected at most {MOST_LINES_OF_FUNCTION}"
        if parameters > MOST_PARAMETERS and f"{path}: {name}" not in WIDE:
            yield f"{path}: {name}: {parameters} parameters, expected at most {MOST_PARAMETERS}"


def test_files_and_functions_are_small() -> None:
    found = [f for p in sources() for f in faults(p.relative_to(ROOT), p.read_text())]
    assert not found, "\n".join(found)


def test_folders_have_rooms() -> None:
    count = Counter(path.parent.relative_to(ROOT) for path in sources())
    crowded = {str(folder): n for folder, n in count.items() if n > MOST_FILES}
    assert not crowded, f"more than {MOST_FILES} files: split the folder into rooms"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long.py", "\n" * 401),
        ("long.py", "def f():\n" + "    pass\n" * 70),
        ("wide.py", "def f(a, b, c, d, e, f, g, *, h, i): ..."),
        ("wide.cpp", "int f(int a, int b, int c, int d, int e, int f, int g, int h, int i) {\n}\n"),
        ("long.cpp", "void f(int a) {\n" + "  g();\n" * 70 + "}\n"),
        ("long.cpp", "A::A(int a)\n    : a_(a) {\n" + "  g();\n" * 70 + "}\n"),
    ],
)
def test_a_fault_is_found(name: str, text: str) -> None:
    assert list(faults(Path(name), text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("room.py", "def f(self, a, b, c, d, e, f, g, h):\n" + "    pass\n" * 69),
        ("room.cpp", "F<a, b, c> f(A<b, c, d> x, int y = g(1, 2, 3, 4, 5)) {\n  g();\n}\n"),
        ("room.cpp", "A::A(int a)\n    : a_{1, 2, 3, 4, 5, 6, 7, 8, a} {\n  g();\n}\n"),
        ("room.cpp", "int f() { return 1; }\n" + "int x = 1;\n" * 80 + "void g() {\n}\n"),
    ],
)
def test_what_fits_is_no_fault(name: str, text: str) -> None:
    assert not list(faults(Path(name), text))
