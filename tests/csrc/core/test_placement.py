"""What the system is asked for when weights are placed: placement_driver.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ... import programs

ROOT = Path(__file__).parents[3]


def test_weights_are_placed_with_the_threads_that_read_them(
    build_program: Callable[..., Path],
) -> None:
    sources = [Path(__file__).with_name("placement_driver.cpp")]
    sources += sorted((ROOT / "csrc/core").glob("*.cpp"))
    used = ("quant/packed_tensor", "quant/rows/stored_rows", "encode/encoder", "model/spec")
    sources += [ROOT / f"csrc/{name}.cpp" for name in (*used, "model/weights")]
    done = programs.run(build_program(sources))
    assert done.returncode == 0, done.stderr
