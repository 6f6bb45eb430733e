"""The thread pool under ThreadSanitizer: thread_pool_driver.cpp, one property a run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ...programs import ENVIRONMENT, BuildError

ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("thread_pool_driver.cpp")
PROPERTIES = re.findall(r"^ +PYFLOW_PROPERTY\((\w+)\)", DRIVER.read_text(), re.MULTILINE)
FLAGS = ["-O1", "-g1", "-fsanitize=thread"]


@pytest.fixture(scope="module")
def driver(build_program: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    probe = tmp_path_factory.mktemp("thread_pool") / "probe.cpp"
    probe.write_text("int main() {}")
    try:
        build_program([probe], FLAGS)
    except BuildError:
        pytest.skip("the compiler cannot link -fsanitize=thread: install its libtsan")
    return build_program([DRIVER, *sorted((ROOT / "csrc/core").glob("*.cpp"))], FLAGS)


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
