"""The thread pool under ThreadSanitizer: thread_pool_driver.cpp, one property a run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("thread_pool_driver.cpp")
PROPERTIES = re.findall(r"^ +PYFLOW_PROPERTY\((\w+)\)", DRIVER.read_text(), re.MULTILINE)
# Another sanitizer, preloaded for the extension, does not go together with this one.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def compile_with_tsan(sources: list[Path], out: Path) -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CXX", "g++")
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{ROOT / 'csrc'}"]
    return subprocess.run(
        [compiler, *flags, *map(str, sources), "-o", str(out)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thread_pool")
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}")
    if compile_with_tsan([probe], folder / "probe").returncode:
        pytest.skip("the compiler cannot link -fsanitize=thread: install its libtsan")
    core = sorted((ROOT / "csrc/core").glob("*.cpp"))
    built = compile_with_tsan([DRIVER, *core], folder / "driver")
    assert built.returncode == 0, built.stderr
    return folder / "driver"


@pytest.mark.parametrize("prop", PROPERTIES)
def test_thread_pool_holds(driver: Path, prop: str) -> None:
    command = [str(driver), prop]
    environment = ENVIRONMENT | {"TSAN_OPTIONS": "halt_on_error=1"}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    done = run()
    if "unexpected memory mapping" in done.stderr:
        # Kernels with much address space randomization leave no room for TSan's shadow.
        command = ["setarch", "--addr-no-randomize", *command]
        done = run()
    assert done.returncode == 0, done.stdout + done.stderr
