"""What clang makes of the kernels for GPUs that are not here: no fused sums, nothing in memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pyflow_testing
import pytest

FORMATS = ["F16", "BF16", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "Q3H_K", "Q8_B32"]
TARGETS = ["nvptx64-nvidia-nvcl", "amdgcn-amd-amdhsa", "spir64"]
OPTIONS = [
    *("-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-nogpulib"),
    *("-O2", "-DUNROLLED", "-DSLICES=16", "-DEXACT_DIVISION", "-DHAS_F64"),
    *("-Wall", "-Werror", "-Wno-unused-variable", "-S", "-emit-llvm"),
]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_products_stay_apart_from_sums_and_arrays_in_registers(
    device: int, tmp_path: Path, target: str
) -> None:
    clang = shutil.which("clang-16")  # others may keep other things in memory
    if not clang:
        pytest.skip("no clang-16 here")
    listed = subprocess.run(
        [clang, "--print-targets"], capture_output=True, text=True, check=False
    ).stdout
    if target.startswith(("nvptx", "amdgcn")) and target.split("-", maxsplit=1)[0] not in listed:
        pytest.skip(f"this clang does not know {target}")
    source, code = tmp_path / "kernels.cl", tmp_path / "kernels.ll"
    source.write_text(pyflow_testing.DeviceOps(device, FORMATS).source)
    cpu = ["-mcpu=gfx1030"] if target.startswith("amdgcn") else []
    command = [clang, *OPTIONS, *cpu, "-target", target, str(source), "-o", str(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = code.read_text()
    assert "fmuladd" not in text
    assert not re.search(r"= f(mul|add|sub|div) [a-z ]*(fast|contract|reassoc|arcp)", text)
    assert " alloca " not in text
