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

from . import programs
from .pyflow import tiny_models

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
        # An editable install answers for pyflow before any path is searched.
        (root / "site/sitecustomize.py").write_text(
            "import sys\n"
            "finders = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]\n"
            "sys.meta_path[:] = finders\n"
        )

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

    def python(self, *args: str, code: int = 0) -> str:
        """What Python prints that imports this tree. code: its exit status."""
        environment = os.environ | {"PYTHONPATH": str(self.root / "site"), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [sys.executable, *args], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def pyflow(self, *args: str, code: int = 0) -> str:
        return self.python("-m", "pyflow", *args, code=code)


def compiled(source: Path, *flags: str, tree: Tree) -> str:
    """What the compiler prints for a source, whose includes are the copy's where it has them."""
    folders = [f"-I{root / 'csrc'}" for root in (tree.root, ROOT)]
    command = [programs.compiler(), "-std=c++20", *folders, str(source), *flags]
    done = programs.run(*command, timeout_s=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    tree.add_line(
        "csrc/model/blocks/blocks.def", "PYFLOW_BLOCK(gain, HostOnly)", after="PYFLOW_BLOCK(ffn"
    )
    return tree


def test_a_block_takes_three_places_to_be_described_checked_and_named(
    tmp_path: Path, with_gain: Tree
) -> None:
    assert len(with_gain.touched) == 3
    model = tmp_path / "model.safetensors"
    shapes = {"words": (12, 8), "norm": (8,), "gains.0": (8,), "gains.1": (8,)}
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, model)
    (tmp_path / "pyflow.toml").write_text(GAIN_SPEC + example("toml"))

    checked = json.loads(with_gain.pyflow("spec", "check", str(model), "--json", code=3))
    assert checked["problems"] == []
    (missing,) = checked["unsupported"]  # only what is not compiled here
    assert "'gain': no such kind in this build" in missing
    assert "learned gain  (x -> h)" in checked["layers"][0]["blocks"]

    code = (
        "import sys; from pyflow import formats; from pyflow.specs import describe, naming;"
        "found = naming(describe(formats.open(sys.argv[1])));"
        "print(*(part.name for part in found.parts.values()))"
    )
    assert "blk.1.layer_gain.weight" in with_gain.python("-c", code, str(model)).split()


@pytest.mark.compiles
def test_a_block_takes_three_places_to_be_made(with_gain: Tree) -> None:
    both = with_gain.root / "both.cpp"
    both.write_text('#include "model/blocks/block.cpp"\n#include "model/blocks/gain.cpp"\n')
    # The list must have declared make_gain, or -Wmissing-declarations speaks up.
    compiled(both, "-fsyntax-only", "-Wmissing-declarations", "-Werror", tree=with_gain)
    make_block = compiled(both, "-E", tree=with_gain).partition("make_block")[2]
    assert "make_gain" in make_block


# ---- a weight format: its header, and two lines in one list

Q6_B32_H = """\
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q6_B32 = LinearBlock<6, 32>;

}  // namespace pyflow::quant
"""
LIST_FORMATS_CPP = """\
#include <cstdio>

#include "encode/table.h"
#include "kernels/table.h"

namespace pyflow {
extern const KernelTable* kernels_scalar();
extern const EncodeTable* encode_scalar();
}  // namespace pyflow

int main() {
  using namespace pyflow;
  for (const DTypeInfo& d : kDTypes) {
    const auto i = static_cast<size_t>(d.dtype);
    std::printf("%s %d %d %d\\n", d.name.data(), d.block_bytes,
                kernels_scalar()->matmul[i] != nullptr, encode_scalar()->search[i] != nullptr);
  }
}
"""


@pytest.mark.compiles
def test_a_weight_format_takes_a_header_and_two_lines(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "csrc")
    tree.add("csrc/quant/formats/own/q6_b32.h", Q6_B32_H)
    formats = "csrc/quant/formats.def"
    tree.add_line(formats, "PYFLOW_FORMAT(Q6_B32, 0x50460100, 32, 28)", after="FORMAT(Q8_0,")
    tree.add_line(formats, '#include "quant/formats/own/q6_b32.h"', after="#else")
    assert len(tree.touched) == 2

    main, program = tmp_path / "main.cpp", tmp_path / "main"
    main.write_text(LIST_FORMATS_CPP)
    tables = [tmp_path / "csrc" / room / "isa.cpp" for room in ("kernels", "encode")]
    lanes = ["-DPYFLOW_ISA=scalar", '-DPYFLOW_SIMD="kernels/simd/scalar.h"']
    compiled(main, *map(str, tables), *lanes, "-O0", "-o", str(program), tree=tree)
    listed = programs.run(program)
    assert "Q6_B32 28 1 1" in listed.stdout.splitlines()


# ---- a file format: its class in two files, and how to recognize it

FLOATS_H = """\
#pragma once

#include "files/checkpoint.h"

namespace pyflow {

class FloatsFile : public Checkpoint {
 public:
  static std::shared_ptr<FloatsFile> open(const std::string& path);
  std::string_view format() const override { return "floats"; }
  std::vector<MetadataEntry> metadata() const override { return {}; }

 private:
  using Checkpoint::Checkpoint;
};

}  // namespace pyflow
"""
FLOATS_CPP = """\
#include "files/floats/floats.h"

namespace pyflow {

std::shared_ptr<FloatsFile> FloatsFile::open(const std::string& path) {
  auto mapped = std::make_shared<const MappedFile>(path);
  std::shared_ptr<FloatsFile> file(new FloatsFile(mapped->label()));
  TensorRow row{.name = "values", .offset = 4, .nbytes = mapped->size() - 4};
  row.set_type(tensor_type(DType::F32));
  row.shape = {static_cast<int64_t>(row.nbytes / 4)};
  row.span = row.nbytes;
  file->add_file(std::move(mapped));
  file->set_table({row});
  return file;
}

}  // namespace pyflow
"""
LIST_TENSORS_CPP = """\
#include <cstdio>

#include "files/open.h"

int main(int, char** arguments) {
  const auto file = pyflow::open_checkpoint(arguments[1]);
  for (const pyflow::TensorRecord& t : file->tensors())
    std::printf("%s %s %g\\n", file->format().data(), t.name.data(),
                reinterpret_cast<const float*>(t.data)[1]);
}
"""


@pytest.mark.compiles
def test_a_file_format_takes_three_places(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", "csrc/files")
    (tree.root / "csrc/files/floats").mkdir()
    tree.add("csrc/files/floats/floats.h", FLOATS_H)
    tree.add("csrc/files/floats/floats.cpp", FLOATS_CPP)
    known, known_as = "csrc/files/open.cpp", '  if (start.starts_with("FLTS"))'
    tree.add_line(known, '#include "files/floats/floats.h"', after='"files/cursor.h"')
    tree.add_line(known, f"{known_as} return FloatsFile::open(path);", after="start = head(file)")
    assert len(tree.touched) == 3

    main, program = tree.root / "main.cpp", tree.root / "main"
    main.write_text(LIST_TENSORS_CPP)
    files = [tree.root / "csrc/files", ROOT / "csrc/core"]
    names = ("open.cpp", "floats/floats.cpp", "checkpoint.cpp", "mapped_file.cpp", "message.cpp")
    sources = [str(path) for name in names for folder in files if (path := folder / name).exists()]
    # The other formats' classes stay out: this program never calls them.
    link = ["-no-pie", "-Wl,--unresolved-symbols=ignore-all", "-o", str(program)]
    compiled(main, *sources, "-O0", *link, tree=tree)
    (tmp_path / "x.bin").write_bytes(b"FLTS" + np.array([1, 2.5], np.float32).tobytes())
    assert programs.run(program, tmp_path / "x.bin").stdout == "floats values 2.5\n"


# ---- a command: its file, and a line in the list

HELLO_PY = '''\
"""`pyflow hello`: greets."""

import click


@click.command()
@click.argument("name")
def command(name: str) -> None:
    """Greet NAME."""
    click.echo(f"Hello, {name}")
'''


def test_a_command_takes_a_file_and_a_line(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add("pyflow/cli/hello.py", HELLO_PY)
    tree.add_line("pyflow/cli/__init__.py", '    "hello": "Greet someone.",', after="COMMANDS = {")
    assert len(tree.touched) == 2
    assert "Greet someone." in tree.pyflow("--help")
    assert "Greet NAME." in tree.pyflow("hello", "--help")
    assert tree.pyflow("hello", "Ada") == "Hello, Ada\n"


# ---- a drafter: its file, and the list of methods

DRAFT = """
from pyflow.speculate import METHODS, Budget, Observed, Speculation, Start
(method,), n_max = METHODS["echo"].make(None, Speculation(window=3))
drafter = method.start(Start(tokens=[1, 2, 3, 4], sampler=None))
drafter.observe(Observed(tokens=[5], accepted=0))
print(n_max, drafter.propose(Budget(n_nodes=2, depth=9)).tokens)
"""


def test_a_drafter_takes_a_file_and_the_list_of_methods(tmp_path: Path) -> None:
    page = (ROOT / "docs/add-a-drafter.md").read_text()
    drafter, lines = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    first, _, entry = lines.rstrip("\n").split("\n")
    tree = Tree(tmp_path)
    tree.add("pyflow/speculate/drafters/echo.py", drafter)
    methods = "pyflow/speculate/methods.py"
    tree.add_line(methods, first, after="from pyflow.errors import")
    tree.add_line(methods, entry, after="jacobi.ENTRY,")
    assert tree.python("-c", DRAFT) == "8 [3, 4]\n"
    told = tree.pyflow("generate", "--help", "speculation")
    assert "|echo" in told
    assert "for echo window (7)" in " ".join(told.split())
    assert len(tree.touched) == 2


# ---- a transport: its file, and the list of transports

PIPELINE = """
import sys
from threading import Thread, current_thread

import pyflow
from pyflow import SamplingParams, _core
from pyflow.cluster.model import over_ranks
from pyflow.cluster.mpi.pipeline import serve
from pyflow.cluster.run.strategy import iterative

path, greedy = sys.argv[1], SamplingParams(temperature=0, seed=0)
pool = _core.ThreadPool(1)
other = Thread(target=serve, args=(path,), kwargs={"pool": pool}, name="rank 1", daemon=True)
other.start()
current_thread().name = "rank 0"
layers = [range(0, 2), range(2, 4)]
with over_ranks(path, strategy=iterative(), layers=layers, n_ctx=64) as model:
    print(model.generate([5, 6, 7], n_predict=12, sampling=greedy).tokens)
other.join()
with pyflow.load(path, n_threads=1) as model:
    print(model.generate([5, 6, 7], n_predict=12, sampling=greedy, n_ctx=64).tokens)
print("mpi4py" in sys.modules)
"""


def test_a_transport_takes_a_file_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "tree")
    source = ROOT / "tests/pyflow/cluster/mpi/queues.py"
    tree.add("pyflow/cluster/mpi/queue_transport.py", source.read_text())
    listed = "pyflow/cluster/mpi/transport.py"
    name = "pyflow.cluster.mpi.queue_transport"
    tree.add_line(listed, f"from {name} import QueueTransport", after="import MpiTransport")
    tree.add_line(listed, "    QueueTransport,", after="TRANSPORTS: ")
    assert len(tree.touched) == 2
    monkeypatch.setenv("RANKS_ARE_THREADS", "1")
    model = tiny_models.write_model(
        tmp_path / "tiny.gguf", n_layers=4, window=0, has_tokenizer=True
    )
    pipelined, plain, has_mpi = tree.python("-c", PIPELINE, str(model)).splitlines()
    assert pipelined == plain != "[]"
    assert has_mpi == "False"
