"""The package that the tests import is the installed one, and imports lightly."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

import pyflow

ROOT = Path(__file__).parents[2]


def test_the_tests_import_the_installed_package_and_not_the_clone() -> None:
    origin = json.loads(distribution("pyflow-llm").read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    expected = ROOT if editable else Path(sysconfig.get_path("platlib"))
    assert Path(pyflow.__file__).resolve() == (expected / "pyflow/__init__.py").resolve()


def test_a_program_started_in_the_clone_imports_the_installed_package() -> None:
    code = "import pyflow; print(pyflow.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == pyflow.__file__


def test_the_source_folder_says_that_it_is_no_package() -> None:
    # -E forgets PYTHONSAFEPATH, -S what is installed: ./pyflow is all that there is.
    command = [sys.executable, "-E", "-S", "-c", "import pyflow"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {ROOT / 'pyflow'} is pyflow's source folder, without")
    assert "python -P" in said
    assert "make dev" in said


def test_a_package_of_another_python_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyflow").mkdir()
    shutil.copy(ROOT / "pyflow/__init__.py", tmp_path / "pyflow")
    (tmp_path / "pyflow/_core.cpython-39-riscv64-linux-gnu.so").touch()
    command = [sys.executable, "-E", "-S", "-c", "import pyflow"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {tmp_path}/pyflow/_core.cpython-39-riscv64-linux-gnu.so")
    assert f"expected _core{sysconfig.get_config_var('EXT_SUFFIX')}" in said


def test_every_module_has_one_name() -> None:
    for name in ("pyflow.formats", "pyflow.quant"):
        importlib.import_module(name)
    assert not {"formats", "quant"} & sys.modules.keys()


def test_importing_the_package_imports_no_engine_until_it_is_used() -> None:
    code = (
        "import sys, pyflow; assert not {'numpy', 'pyflow._core'} & sys.modules.keys()\n"
        "assert all(getattr(pyflow, name).__name__ == name for name in pyflow.__all__)\n"
        "assert not hasattr(pyflow, 'nothing')\n"
        "assert pyflow.__version__[0].isdigit() and '__version__' in dir(pyflow)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_interruption_while_the_command_is_imported_is_quiet() -> None:
    code = (
        "import sys\n"
        "from pyflow.__main__ import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"interrupted")


def test_every_file_of_the_tree_is_installed() -> None:
    installed = Path(pyflow.__file__).parent
    if installed == ROOT / "pyflow":
        pytest.skip("an editable install")
    for folder, package in [("pyflow", "."), ("quant", "quant"), ("formats", "formats")]:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert (installed / package / path.relative_to(ROOT / folder)).exists(), path
