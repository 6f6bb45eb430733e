"""A weight format runs on devices by its header alone.

test_products.py tries all formats of the list; this compiles the core for one that is new.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ... import programs
from ...test_places import Q6_B32_H, Tree, compiled


@pytest.mark.accept
@pytest.mark.compiles
def test_a_new_format_is_exact_on_a_device(device: int, tmp_path: Path) -> None:
    tree = Tree(tmp_path, "csrc")
    tree.add("csrc/quant/formats/own/q6_b32.h", Q6_B32_H)
    formats = "csrc/quant/formats.def"
    tree.add_line(formats, "PYFLOW_FORMAT(Q6_B32, 0x50460100, 32, 28)", after="FORMAT(Q8_0,")
    tree.add_line(formats, '#include "quant/formats/own/q6_b32.h"', after="#else")

    csrc = tmp_path / "csrc"
    sources = [
        csrc / "kernels/isa.cpp",
        csrc / "quant/packed_tensor.cpp",
        csrc / "core/buffer.cpp",
        csrc / "core/message.cpp",
        *(csrc / "device").rglob("*.cpp"),
    ]
    flags = [
        "-DPYFLOW_ISA=scalar",
        '-DPYFLOW_SIMD="kernels/simd/scalar.h"',
        "-DPYFLOW_TRIED=Q6_B32",
    ]
    program = tmp_path / "program"
    driver = Path(__file__).parent / "format_driver.cpp"
    libraries = ["-ldl", "-pthread", "-O0", "-ffp-contract=off", "-o", str(program)]
    compiled(driver, *map(str, sources), *flags, *libraries, tree=tree)
    tried = programs.run(program, str(device), str(csrc / "device/kernels"))
    assert tried.stdout == "exact\n"
