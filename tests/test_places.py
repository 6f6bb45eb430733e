"""How many places each kind of thing takes to add: each is added to a copy of the tree and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pyflow import _core

ROOT = Path(__file__).parents[1]


class Tree:
    """A copy of the Python sources, ready to be imported, and of what else a test names."""

    def __init__(self, root: Path, *also: str) -> None:
        self.root = root
        self.touched: set[str] = set()
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
        packages: dict[str, str] = settings["tool"]["scikit-build"]["wheel"]["packages"]
        for source in (*packages.values(), *also):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, root / source, ignore=ignored)
        site = root / "site/pyflow"
        site.mkdir(parents=True)
        for path in (root / "pyflow").iterdir():
            (site / path.name).symlink_to(path)
        for package, source in packages.items():
            if package != "pyflow":
                (root / "site" / package).symlink_to(root / source)
        extension = Path(_core.__file__)
        (site / extension.name).symlink_to(extension)

    def add(self, path: str, text: str) -> None:
        """A new file."""
        assert not (self.root / path).exists()
        (self.root / path).write_text(text)
        self.touched.add(path)

    def add_line(self, path: str, line: str, *, after: str) -> None:
        """A line in a file, below the first that has the text `after`."""
        lines = (self.root / path).read_text().splitlines()
        at = next(i for i, one in enumerate(lines) if after in one)
        (self.root / path).write_text("\n".join([*lines[: at + 1], line, *lines[at + 1 :]]) + "\n")
        self.touched.add(path)

    def python(self, *args: str) -> str:
        """What Python prints that imports this tree."""
        environment = os.environ | {"PYTHONPATH": str(self.root / "site"), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [sys.executable, *args], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pyflow(self, *args: str) -> str:
        return self.python("-m", "pyflow", *args)


# ---- a block: its C++, its description, and its name in the list

DOC = (ROOT / "docs/add-a-block.md").read_text()
GAIN_SPEC = """\
spec = 1
name = "gained"

[facts]
n_embd = 8
n_ctx = 16

[decoder]
n_layers = 2
final_norm = "norm"
layer = [{ name = "mix", run = "gain" }]

[blocks.norm]
kind = "norm"
eps = 1e-6

[head]
tied = true

[tensors.decoder]
embed = "words"
final_norm = "norm"
"""


def example(language: str) -> str:
    """The only example of this language in docs/add-a-block.md."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.M | re.S)
    return str(found)


@pytest.fixture
def with_gain(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "tree", "csrc/model")
    tree.add("csrc/model/blocks/gain.cpp", example("cpp"))
    tree.add("pyflow/specs/blocks/gain.py", example("python"))
    tree.add_line("csrc/model/blocks/blocks.def", "PYFLOW_BLOCK(gain)", after="PYFLOW_BLOCK(ffn)")
    return tree


def test_a_block_takes_three_places_to_be_described_checked_and_named(
    tmp_path: Path, with_gain: Tree
) -> None:
    assert len(with_gain.touched) == 3
    model = tmp_path / "model.safetensors"
    shapes = {"words": (12, 8), "norm": (8,), "gains.0": (8,), "gains.1": (8,)}
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, model)
    (tmp_path / "pyflow.toml").write_text(GAIN_SPEC + example("toml"))

    checked = json.loads(with_gain.pyflow("spec", "check", str(model), "--json"))
    assert checked["fits"]
    assert "learned gain  (x -> h)" in checked["layers"][0]["blocks"]

    code = (
        "import sys; from pyflow import formats; from pyflow.specs import describe, naming;"
        "found = naming(describe(formats.open(sys.argv[1])));"
        "print(*(part.name for part in found.parts.values()))"
    )
    assert "blk.1.layer_gain.weight" in with_gain.python("-c", code, str(model)).split()


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_block_takes_three_places_to_be_made(with_gain: Tree) -> None:
    both = with_gain.root / "both.cpp"
    both.write_text('#include "model/blocks/block.cpp"\n#include "model/blocks/gain.cpp"\n')
    # -Wmissing-declarations: make_gain must have been declared by the list.
    command = ["c++", "-std=c++20", "-fsyntax-only", "-Wmissing-declarations", "-Werror"]
    for folder in (with_gain.root, ROOT):  # the copy first
        command += ["-I", str(folder / "csrc")]
    subprocess.run([*command, str(both)], check=True)
    assert (
        "make_gain"
        in subprocess.run(
            [*command, "-E", str(with_gain.root / "csrc/model/blocks/block.cpp")],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.partition("make_block")[2]
    )
