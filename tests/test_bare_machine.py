"""Tests are collected on a machine that has only the package and its extra `test`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# `test` installs mpi4py, but importing it starts MPI; the others are in extras of their own.
ABSENT = ("torch", "transformers", "safetensors.torch", "mpi4py", "llama_cpp")
# Programs, which pytest does not import: they make golden files or are started as ranks.
PROGRAMS = ("make*.py", "*_driver.py", "invented_twin.py")


def imports_on_load(nodes: list[ast.stmt]) -> Iterator[str]:
    """The dotted names that loading a module imports: outside of functions and TYPE_CHECKING."""
    for node in nodes:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield from imports_on_load(node.orelse)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case _:
                blocks = (getattr(node, field, []) for field in ("body", "orelse", "finalbody"))
                for block in [*blocks, *(h.body for h in getattr(node, "handlers", []))]:
                    yield from imports_on_load(block)


def absent_imports(text: str) -> list[str]:
    return [
        name
        for name in imports_on_load(ast.parse(text).body)
        if any(f"{name}.".startswith(f"{absent}.") for absent in ABSENT)
    ]


def test_no_test_module_imports_a_library_that_a_bare_machine_lacks() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in sorted(TESTS.rglob("*.py"))
        if not any(fnmatch(path.name, pattern) for pattern in PROGRAMS)
        if (names := absent_imports(path.read_text()))
    }
    assert not found, "use the fixture `oracle`"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.nn", ["torch.nn"]),
        ("import safetensors.numpy, safetensors.torch", ["safetensors.torch"]),
        ("from safetensors import torch", ["safetensors.torch"]),
        ("try:\n    import x\nexcept ImportError:\n    import torch", ["torch"]),
        ("class A:\n    from mpi4py import MPI", ["mpi4py.MPI"]),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import llama_cpp", ["llama_cpp"]),
        ("def f():\n    import torch", []),
        ("import torchvision", []),
        ("from . import torch", []),
    ],
)
def test_imports_on_load_are_found(text: str, expected: list[str]) -> None:
    assert absent_imports(text) == expected
