"""What the system is asked for when weights are placed: placement_driver.cpp."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_weights_are_placed_with_the_threads_that_read_them(tmp_path: Path) -> None:
    sources = [Path(__file__).with_name("placement_driver.cpp")]
    sources += sorted((ROOT / "csrc/core").glob("*.cpp"))
    used = ("quant/packed_tensor", "kernels/encode", "model/spec", "model/weights")
    sources += [ROOT / f"csrc/{name}.cpp" for name in used]
    # A sanitizer preloaded for the extension does not go together with a plain program.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-pthread", f"-I{ROOT / 'csrc'}"]
    command = [*compiler, *map(str, sources), "-o", str(tmp_path / "driver")]
    subprocess.run(command, env=environment, check=True)
    done = subprocess.run(
        [tmp_path / "driver"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
