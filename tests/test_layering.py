"""Dependencies point one way: the two tables below, held against every #include and import.

Nothing imports in a circle, be it files or folders: imports for types and inside functions count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The folders of csrc, lowest first, and which lower ones each may include besides itself.
CPP: dict[str, set[str]] = {
    "core": set(),
    "files": {"core"},
    "link": {"core"},
    "sample": {"core"},
    "quant": {"core"},
    "kernels": {"core", "quant"},
    "device": {"core", "quant", "kernels"},
    "encode": {"core", "quant", "kernels"},
    "bench": {"core", "kernels"},
    "kv": {"core", "kernels", "device"},
    "model": {"core", "quant", "kernels", "device", "encode", "kv", "sample", "link"},
    "calibrate": {"core", "quant", "kernels", "encode", "kv", "model"},
    "bindings": {
        "core",
        "quant",
        "files",
        "link",
        "sample",
        "kernels",
        "device",
        "encode",
        "bench",
        "kv",
        "model",
        "calibrate",
    },
}
# The list of formats is data, generated into the dtypes of core.
CPP_EXCEPTIONS = {("csrc/core/dtype.h", "quant/formats.def")}
# A header that only these files may include.
CPP_ONLY = {
    r"pybind11/.*": r"csrc/bindings/.*",
    r"immintrin\.h|arm_neon\.h": r"csrc/kernels/simd/intrinsics\.h",
}

# What lies in pyflow, lowest first: a module may import from its own line and the lines before it.
PYTHON = (
    "_core",
    "errors",
    "text",
    "closing",
    "arguments",
    "formats",
    "quant",
    "specs",
    "adapters",
    "tokenizer",
    "chat",
    "sampling",
    "constrain",
    "gguf_export",
    "downloads",
    "devices",
    "hub",
    "stores",
    "catalogue",
    "engine",
    "speculate",
    "train",
    "batch",
    "generate",
    "embed",
    "cluster",
    "model",
    "serve",
    "__init__",
    "cli",
    "__main__",
)
# A library that only these files may import.
PYTHON_ONLY = {
    "jinja2": r"pyflow/chat.*",
    "mpi4py": r"pyflow/cluster/mpi/.*",
    "click": r"pyflow/cli/.*",
    "huggingface_hub": r"pyflow/hub/.*",
    "llguidance": r"pyflow/constrain/.*",
    "h11": r"pyflow/serve/.*",
    "prometheus_client": r"pyflow/serve/.*",
    "starlette": r"pyflow/serve/.*",
    "uvicorn": r"pyflow/serve/.*",
}
# Folders of the tree that are installed inside pyflow.
MOVED = {"quant", "formats"}

Edges = dict[str, set[str]]


def cpp_sources() -> list[Path]:
    return [p for kind in ("*.h", "*.cpp", "*.inl") for p in sorted((ROOT / "csrc").rglob(kind))]


def python_sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def included(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def cpp_faults(name: str, text: str) -> Iterator[str]:
    folder = name.split("/")[1]
    for header in included(text):
        for pattern, where in CPP_ONLY.items():
            if re.fullmatch(pattern, header) and not re.fullmatch(where, name):
                yield f"{name} includes {header}, which belongs to {where}"
        target = header.split("/")[0]
        allowed = target not in CPP or target in CPP[folder] | {folder}
        if not allowed and (name, header) not in CPP_EXCEPTIONS:
            yield f"{name} includes {header}: {folder} lies below {target}"


def module_name(path: Path) -> str:
    """The dotted name that a file has once installed; a package is called by its __init__."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in MOVED:
        parts.insert(0, "pyflow")
    return ".".join(parts)


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """Every dotted name that a module's tree imports, `from x import y` as x.y."""
    package = module.rpartition(".")[0].split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{name}.{alias.name}" for alias in node.names)


def python_faults(name: str, module: str, text: str) -> Iterator[str]:
    own = module.split(".")[1]
    if own not in PYTHON:
        yield f"{name}: pyflow.{own} has no line; give it one in {Path(__file__).name}"
        return
    for target in imported(ast.parse(text), module):
        first, *rest = target.split(".")
        if first in PYTHON_ONLY and not re.fullmatch(PYTHON_ONLY[first], name):
            yield f"{name} imports {target}, which belongs to {PYTHON_ONLY[first]}"
        if first == "pyflow":
            noun = rest[0] if rest and rest[0] in PYTHON else "__init__"
            if PYTHON.index(noun) > PYTHON.index(own):
                yield f"{name} imports {target}: pyflow.{own} lies below pyflow.{noun}"


def python_edges(texts: Mapping[str, str]) -> Edges:
    """By module, those of these modules that it imports."""

    def found(target: str) -> str | None:
        while target:
            for name in (target, f"{target}.__init__"):
                if name in texts:
                    return name
            if target == "pyflow._core":
                return None
            target = target.rpartition(".")[0]
        return None

    return {
        module: {t for name in imported(ast.parse(text), module) if (t := found(name))} - {module}
        for module, text in texts.items()
    }


def among_siblings(edges: Edges, folder: str, separator: str) -> Edges:
    """The edges between what lies in a folder, each folder in it being one thing."""

    def child(name: str) -> str | None:
        inside = name.removeprefix(folder + separator)
        return None if inside == name else inside.split(separator)[0]

    out: Edges = {}
    for source, targets in edges.items():
        if (a := child(source)) is not None:
            out.setdefault(a, set()).update(b for t in targets if (b := child(t)) and b != a)
    return out


def circle(edges: Edges) -> list[str]:
    """Some names that depend on each other in a circle; empty if there are none."""
    done: set[str] = set()
    way: list[str] = []

    def visit(name: str) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        way.append(name)
        for target in sorted(edges.get(name, ())):
            if found := visit(target):
                return found
        done.add(way.pop())
        return []

    return next((found for name in sorted(edges) if (found := visit(name))), [])


def folders_of(names: Mapping[str, object], separator: str) -> list[str]:
    parts = [name.split(separator) for name in names]
    return sorted({separator.join(p[:n]) for p in parts for n in range(1, len(p))})


PYTHON_EDGES = python_edges(
    {module_name(path): path.read_text() for path in python_sources("pyflow", *sorted(MOVED))}
)
CPP_EDGES = {
    str(path.relative_to(ROOT)): {
        f"csrc/{header}"
        for header in included(path.read_text())
        if (ROOT / "csrc" / header).is_file() and header != "quant/formats.def"
    }
    for path in cpp_sources()
}


@pytest.mark.parametrize("path", cpp_sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_point_down(path: Path) -> None:
    assert not list(cpp_faults(str(path.relative_to(ROOT)), path.read_text()))


@pytest.mark.parametrize(
    "path",
    python_sources("pyflow", *sorted(MOVED)),
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_imports_point_down(path: Path) -> None:
    assert not list(python_faults(str(path.relative_to(ROOT)), module_name(path), path.read_text()))


def test_no_imports_go_in_a_circle() -> None:
    assert not circle(PYTHON_EDGES)


@pytest.mark.parametrize("folder", folders_of(PYTHON_EDGES, "."))
def test_no_rooms_of_a_folder_import_in_a_circle(folder: str) -> None:
    assert not circle(among_siblings(PYTHON_EDGES, folder, "."))


def test_no_includes_go_in_a_circle() -> None:
    assert not circle(CPP_EDGES)


def test_each_line_has_a_folder_or_file_and_each_has_a_line() -> None:
    there = {module.split(".")[1] for module in PYTHON_EDGES} | {"_core"}
    assert sorted(there) == sorted(PYTHON)
    assert {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()} == set(CPP)


def test_the_folders_of_csrc_are_listed_lowest_first() -> None:
    nouns = list(CPP)
    for i, (folder, below) in enumerate(CPP.items()):
        assert below <= set(nouns[:i]), folder


def test_nobody_imports_quant_or_formats_by_their_folder_names() -> None:
    for path in python_sources("pyflow", "tests", "bench", "docs", *sorted(MOVED)):
        names = imported(ast.parse(path.read_text()), "x.y")
        found = [name for name in names if name.split(".")[0] in MOVED]
        assert not found, f"{path}: import pyflow.{found[0]} instead"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("csrc/core/buffer.cpp", '#include "model/stage.h"'),
        ("csrc/kernels/math.inl", '  #  include "kv/cells.h"'),
        ("csrc/model/stage.cpp", "#include <pybind11/pybind11.h>"),
        ("csrc/kernels/dispatch.cpp", "#include <immintrin.h>"),
    ],
)
def test_a_wrong_include_is_found(name: str, text: str) -> None:
    assert list(cpp_faults(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("formats/gguf.py", "from pyflow.engine.loaded import LoadedModel"),
        ("formats/gguf.py", "from .. import engine"),
        ("formats/gguf.py", "from pyflow import load"),
        ("quant/measure/perplexity.py", "def f():\n    from ...generate import stream"),
        ("pyflow/engine/loaded.py", "import pyflow.cli"),
        ("pyflow/engine/loaded.py", "from ..model import Model"),
        ("pyflow/engine/loaded.py", "import jinja2"),
        ("pyflow/stray.py", ""),
    ],
)
def test_a_wrong_import_is_found(name: str, text: str) -> None:
    assert list(python_faults(name, module_name(ROOT / name), text))


def test_a_circle_of_imports_is_found_also_for_types_and_inside_functions() -> None:
    texts = {
        "pyflow.a": "from pyflow import b",
        "pyflow.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import y",
        "pyflow.c.__init__": "def f():\n    from pyflow.c.d import x",
        "pyflow.c.d": "import pyflow.a",
    }
    found = circle(python_edges(texts))
    assert found[0] == found[-1]
    assert set(found) == set(texts)
    assert not circle(python_edges(texts | {"pyflow.c.d": "from pyflow import _core"}))


def test_a_circle_between_rooms_is_found_where_files_have_none() -> None:
    texts = {"x.a.p": "import x.b.q", "x.b.q": "", "x.b.r": "import x.a.s", "x.a.s": ""}
    edges = python_edges(texts)
    assert not circle(edges)
    assert circle(among_siblings(edges, "x", ".")) == ["a", "b", "a"]
