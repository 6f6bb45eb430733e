"""The core built for AArch64, and every kernel of it under emulation: kernels_driver.cpp.

Without an ARM machine this is what holds the NEON table to the scalar one, and both to x86-64.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from ... import programs

ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("kernels_driver.cpp")
BUILD = ROOT / "build/aarch64"
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
# cmake and ninja come from the package index.
ENVIRONMENT = programs.ENVIRONMENT | {
    "PATH": sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
}
FLAGS = ["-O1", "-ffp-contract=off"]

pytestmark = pytest.mark.aarch64


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def emulate(driver: Path, cpu: str) -> list[str]:
    return run(EMULATOR, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", driver).splitlines()


@pytest.fixture(scope="module")
def core() -> Path:
    """The static core, by its own CMakeLists.txt; only what changed is built again."""
    missing = [
        tool
        for tool in (COMPILER, EMULATOR, "cmake", "ninja")
        if not shutil.which(tool, path=ENVIRONMENT["PATH"])
    ]
    if missing:
        reason = f"not installed: {', '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)"
        if "aarch64" in os.environ.get("PYFLOW_TEST_REQUIRES", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "CMAKE_CXX_FLAGS": "-Werror",
        "CMAKE_CXX_FLAGS_RELEASE": "-O1",
        "PYFLOW_ISA_OPTIMIZATION": "-O2",
        "PYFLOW_MODULE": "OFF",
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *defines)
    run("cmake", "--build", BUILD)
    return BUILD / "libpyflow_core.a"


@pytest.fixture(scope="module")
def driver(core: Path) -> Path:
    out = BUILD / "kernels_driver"
    run(COMPILER, "-std=c++20", *FLAGS, f"-I{ROOT / 'csrc'}", "-pthread", DRIVER, core, "-o", out)
    return out


@pytest.fixture(scope="module")
def output(driver: Path) -> list[str]:
    """The tables that an emulated CPU with everything has, then what each kernel wrote."""
    return emulate(driver, "max")


def test_neon_writes_the_bits_of_the_scalar_table(output: list[str]) -> None:
    assert output[0] == "tables: scalar neon"  # and the driver has compared them


def test_a_cpu_without_dot_products_is_not_given_neon(driver: Path, output: list[str]) -> None:
    assert emulate(driver, "cortex-a72") == ["tables: scalar", *output[1:]]


def test_both_architectures_write_the_same_bits(
    output: list[str], build_program: Callable[..., Path]
) -> None:
    built = sorted(
        (ROOT / "build").glob("make/*/libpyflow_core.a"), key=lambda p: p.stat().st_mtime
    )
    if not built:
        pytest.skip("no build tree of this machine's own core")
    native = build_program([DRIVER], FLAGS, [built[-1]])
    assert run(native).splitlines()[1:] == output[1:]


def test_the_neon_objects_export_their_tables_and_nothing_else(core: Path) -> None:
    found = []
    for built in core.parent.glob("CMakeFiles/isa_neon.dir/**/*.o"):
        listed = run("aarch64-linux-gnu-nm", "--demangle", "--defined-only", "--extern-only", built)
        found += [line.split(maxsplit=1)[1] for line in listed.splitlines()]
    assert sorted(found) == ["T pyflow::encode_neon()", "T pyflow::kernels_neon()"]
