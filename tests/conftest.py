"""Fixtures shared by all tests."""

from __future__ import annotations

import importlib
import lzma
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import programs

if TYPE_CHECKING:
    from pyflow.tokenizer import Tokenizer

# The clone has a ./pyflow without its extension: neither the tests nor the programs they start may
# import from the current directory, however pytest was called.
os.environ["PYTHONSAFEPATH"] = "1"
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parents[1]]

# pyflow_testing, the bindings that only tests use, lies beside the wheel: `make testing` builds it.
sys.path.append(os.environ.get("PYFLOW_TESTING", str(Path(__file__).parents[1] / "build/testing")))

# What a shell starts in the background may ignore Ctrl-C, and so would the programs that tests
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def without_amx() -> str | None:
    """The best other table where dispatch takes AMX, whose prompts have their own arithmetic."""
    from pyflow import _core

    tables = _core.runnable_isas()
    others = [table for table in tables if table != "amx"]
    return others[-1] if others != tables else None


# Texts of tests are the same on all machines: those of AMX name its table, or the emulator's.
# PYFLOW_TEST_REQUIRES=amx leaves the choice to dispatch.
if "amx" not in os.environ.get("PYFLOW_TEST_REQUIRES", "").split(",") and (isa := without_amx()):
    os.environ.setdefault("PYFLOW_ISA", isa)

# Devices of PoCL, which opens its drivers once: the CPU four times.
os.environ.setdefault("POCL_DEVICES", " ".join(4 * ["pthread"]))


# The marker of a test that takes this fixture.
MARKERS = {
    "build_program": "compiles",
    "client": "client",
    "mpiexec": "mpi",
    "model_path": "model",
    "oracle": "oracle",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their fixtures; those with a model's name as a parameter are `model` too."""
    from pyflow import catalogue

    models = {entry.name for entry in catalogue.models()}
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKERS:
                item.add_marker(MARKERS[fixture])
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(value, str) and value in models for value in parameters):
            item.add_marker("model")


Import = Callable[[str], Any]
Build = Callable[..., Path]


def _import_from(extra: str) -> Import:
    """Imports a library of an extra. Without it the test is skipped, or fails where
    PYFLOW_TEST_REQUIRES contains the extra."""

    def load(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            reason = f"no {name} here: pip install '.[{extra}]'"
            if extra in os.environ.get("PYFLOW_TEST_REQUIRES", "").split(","):
                pytest.fail(reason)
            pytest.skip(reason)

    return load


@pytest.fixture(scope="session")
def oracle() -> Import:
    """Imports a library of the extra `oracles`, whose results must equal ours."""
    return _import_from("oracles")


@pytest.fixture(scope="session")
def client() -> Import:
    """Imports a library of the extra `clients`, which must understand our server."""
    return _import_from("clients")


@pytest.fixture(scope="session")
def build_program() -> Build:
    """`programs.build`, which compiles C++ sources to a program."""
    return programs.build


@pytest.fixture(scope="session")
def mpiexec() -> str:
    """The path of mpi4py's mpiexec. Tests that start ranks through `pyflow cluster run` take this
    fixture too, so that they are marked."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    assert found, "mpiexec is missing: pip install 'pyflow-llm[cluster]'"
    return found


@pytest.fixture(scope="session")
def wikitext2() -> str:
    """The test split of WikiText-2, raw; skips where there is none."""
    default = Path(__file__).parents[2] / "shared" / "data" / "wiki.test.raw.xz"
    path = Path(os.environ.get("PYFLOW_WIKITEXT2") or default)
    if not path.is_file():
        pytest.skip(f"{path} is missing: set PYFLOW_WIKITEXT2 to the test split of WikiText-2 raw")
    raw = path.read_bytes()
    return (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """The path of a real model by its name; pulled on first use."""
    from pyflow import catalogue

    return catalogue.pull


@pytest.fixture(scope="session")
def metadata_of(model_path: Callable[[str], Path]) -> Callable[[str], dict[str, object]]:
    """The GGUF metadata of a real model by the model's name."""
    from pyflow import formats

    @cache
    def metadata(name: str) -> dict[str, object]:
        return dict(formats.open(model_path(name)).metadata)

    return metadata


@pytest.fixture(scope="session")
def tokenizer_of(
    metadata_of: Callable[[str], dict[str, object]],
) -> Callable[[str], Tokenizer]:
    """The tokenizer of a real model by the model's name."""
    from pyflow.tokenizer import from_metadata

    @cache
    def tokenizer(name: str) -> Tokenizer:
        return from_metadata(metadata_of(name), source=f"{name}.gguf")

    return tokenizer


@pytest.fixture(scope="session")
def devices() -> list[int]:
    """The numbers of four devices of PoCL, which runs OpenCL on any CPU, or of those whose API and
    driver contain PYFLOW_TEST_DEVICES, as in "CUDA"; one stands for others that are not there.

    Without one the test is skipped, or fails where PYFLOW_TEST_REQUIRES contains `device`.
    """
    from pyflow import _core

    answer = _core.devices()
    wanted = os.environ.get("PYFLOW_TEST_DEVICES", "PoCL")
    found = [n for n, d in enumerate(answer["found"]) if wanted in f"{d['api']} {d['driver']}"]
    if found:
        return (4 * found)[:4]
    reason = f"no device of {wanted} here (Debian: pocl-opencl-icd)"
    if "device" in os.environ.get("PYFLOW_TEST_REQUIRES", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def device(devices: list[int]) -> int:
    """One of them."""
    return devices[0]


@pytest.fixture(scope="session")
def mock_cuda(device: int, build_program: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 and an NVRTC that compute on PoCL, for LD_LIBRARY_PATH."""
    assert device >= 0
    here, csrc = Path(__file__).parent, Path(__file__).parents[1] / "csrc"
    mocks = [here / f"csrc/device/mock/{name}.cpp" for name in ("cuda", "kernels", "nvrtc")]
    kernels = f'-DMOCK_KERNELS="{csrc / "device/kernels"}"'
    tests = f'-DMOCK_TESTS="{here / "csrc/device/mock"}"'
    library = build_program(
        [*mocks, csrc / "device/opencl/api.cpp"],
        ["-shared", "-fPIC", "-O1", kernels, tests, "-ldl"],
    )
    folder = tmp_path_factory.mktemp("cuda")
    for name in ("libcuda.so.1", "libnvrtc.so.12"):
        (folder / name).symlink_to(library)
    return folder
