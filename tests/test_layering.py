"""Dependencies point one way: the two tables below, held against every #include and import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# csrc/<folder> may include these folders besides itself.
CPP: dict[str, set[str]] = {
    "core": set(),
    "quant": {"core"},
    "files": {"core"},
    "sample": {"core"},
    "kernels": {"core", "quant"},
    "kv": {"core", "kernels"},
    "model": {"core", "quant", "kernels", "kv", "sample"},
    "bindings": {"core", "quant", "files", "sample", "kernels", "kv", "model"},
}
# The list of formats is data, generated into the dtypes of core.
CPP_EXCEPTIONS = {("csrc/core/dtype.h", "quant/formats.def")}
# A header that only these files may include.
CPP_ONLY = {
    r"pybind11/.*": r"csrc/bindings/.*",
    r"immintrin\.h": r"csrc/kernels/(isa|simd)_(avx|amx).*",
    r"arm_neon\.h": r"csrc/kernels/(isa|simd)_neon.*",
}

# Modules of pyflow, lowest first; a module may import from its own line and the lines before it.
PYTHON: list[set[str]] = [
    {"errors", "text", "closing", "_core"},
    {"arguments"},
    {"formats"},
    {"quant"},
    {"specs", "tokenizer", "chat", "sampling"},
    {"gguf_export", "catalogue"},
    {"engine"},
    {"speculate"},
    {"generate"},
    {"cluster"},
    {"model"},
    {"__init__"},
    {"cli", "__main__"},
]
# A library that only these files may import.
PYTHON_ONLY = {
    "jinja2": r"pyflow/chat.*",
    "mpi4py": r"pyflow/cluster/mpi/.*",
    "click": r"pyflow/cli/.*",
}


def cpp_sources() -> list[Path]:
    return [p for kind in ("*.h", "*.cpp", "*.inl") for p in sorted((ROOT / "csrc").rglob(kind))]


def python_sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def cpp_faults(name: str, text: str) -> Iterator[str]:
    folder = name.split("/")[1]
    for header in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE):
        for pattern, where in CPP_ONLY.items():
            if re.fullmatch(pattern, header) and not re.fullmatch(where, name):
                yield f"{name} includes {header}, which belongs to {where}"
        target = header.split("/")[0]
        allowed = target not in CPP or target in CPP[folder] | {folder}
        if not allowed and (name, header) not in CPP_EXCEPTIONS:
            yield f"{name} includes {header}: {folder} lies below {target}"


def module_name(path: Path) -> str:
    """The dotted name that a file of pyflow/, quant/ or formats/ has once installed."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in {"quant", "formats"}:
        parts.insert(0, "pyflow")
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Every dotted name that the tree imports, `from x import y` as x.y."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)])
            base = ".".join(filter(None, [base if node.level else "", node.module]))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer(noun: str) -> int:
    return next(i for i, line in enumerate(PYTHON) if noun in line)


def python_faults(name: str, module: str, text: str) -> Iterator[str]:
    own = module.split(".")[1]
    nouns = set().union(*PYTHON)
    if own not in nouns:
        yield f"{name}: pyflow.{own} has no layer; give it one in {Path(__file__).name}"
        return
    is_package = name.endswith("__init__.py")
    package = module.removesuffix(".__init__")
    for target in imported(ast.parse(text), package, is_package):
        first, *rest = target.split(".")
        if first in PYTHON_ONLY and not re.fullmatch(PYTHON_ONLY[first], name):
            yield f"{name} imports {target}, which belongs to {PYTHON_ONLY[first]}"
        if first == "pyflow":
            noun = rest[0] if rest and rest[0] in nouns else "__init__"
            if layer(noun) > layer(own):
                yield f"{name} imports {target}: pyflow.{own} lies below pyflow.{noun}"


@pytest.mark.parametrize("path", cpp_sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_point_down(path: Path) -> None:
    assert not list(cpp_faults(str(path.relative_to(ROOT)), path.read_text()))


@pytest.mark.parametrize(
    "path", python_sources("pyflow", "quant", "formats"), ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_point_down(path: Path) -> None:
    assert not list(python_faults(str(path.relative_to(ROOT)), module_name(path), path.read_text()))


def test_nobody_imports_quant_or_formats_by_their_folder_names() -> None:
    folders = ["pyflow", "quant", "formats", "tests", "bench", "docs"]
    for path in python_sources(*folders):
        names = imported(ast.parse(path.read_text()), "x", is_package=True)
        found = [name for name in names if name.split(".")[0] in {"quant", "formats"}]
        assert not found, f"{path}: import pyflow.{found[0]} instead"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("csrc/core/buffer.cpp", '#include "model/stage.h"'),
        ("csrc/kernels/matmul.inl", '  #  include "kv/cells.h"'),
        ("csrc/model/stage.cpp", "#include <pybind11/pybind11.h>"),
        ("csrc/kernels/dispatch.cpp", "#include <immintrin.h>"),
    ],
)
def test_a_wrong_include_is_found(name: str, text: str) -> None:
    assert list(cpp_faults(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("formats/gguf.py", "from pyflow.engine.loaded import Model"),
        ("formats/gguf.py", "from .. import engine"),
        ("formats/gguf.py", "from pyflow import load"),
        ("quant/measure/perplexity.py", "def f():\n    from ...generate import stream"),
        ("pyflow/engine/loaded.py", "import pyflow.cli"),
        ("pyflow/engine/loaded.py", "import jinja2"),
        ("pyflow/stray.py", ""),
    ],
)
def test_a_wrong_import_is_found(name: str, text: str) -> None:
    assert list(python_faults(name, module_name(ROOT / name), text))
