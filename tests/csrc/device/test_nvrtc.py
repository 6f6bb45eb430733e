"""What NVRTC makes of the kernels, for GPUs that are not here: every product is rounded by itself.

It needs no GPU. Its own code tells: PTX says what is rounded how, and SASS, what a GPU runs, shows
that no product was fused with a sum after all.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NoReturn

import pyflow_testing
import pytest

from pyflow import _core

PACKAGES = Path(sysconfig.get_path("purelib")) / "nvidia"
NVRTC = PACKAGES / "cuda_nvrtc/lib/libnvrtc.so.12"
FORMATS = [form["name"] for form in _core.weight_formats()]
SOME = ["F16", "Q4_K", "Q6_K", "Q8_B32"]

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def lacks(tool: str) -> NoReturn:
    reason = f"no {tool} here: pip install '.[oracles]'"
    if "oracles" in os.environ.get("PYFLOW_TEST_REQUIRES", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """Loaded, so that pyflow finds it by its name."""
    if NVRTC.exists():
        return ctypes.CDLL(str(NVRTC))
    lacks("NVRTC")


@cache
def code(capability: int, *formats: str) -> bytes:
    return pyflow_testing.cuda_code(*pyflow_testing.cuda_source([*formats]), capability)


def ptx_of(nvrtc: ctypes.CDLL, source: str, options: str) -> str:
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    words = [word.encode() for word in ["--gpu-architecture=compute_75", *options.split()]]
    assert not nvrtc.nvrtcCreateProgram(
        ctypes.byref(handle), source.encode(), b"kernels", 0, None, None
    )
    assert not nvrtc.nvrtcCompileProgram(handle, len(words), (ctypes.c_char_p * len(words))(*words))
    assert not nvrtc.nvrtcGetPTXSize(handle, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    assert not nvrtc.nvrtcGetPTX(handle, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
    return text.value.decode()


def kernels_of(text: str, begin: str) -> dict[str, list[str]]:
    """By kernel: its instructions, with their suffixes."""
    parts = re.split(begin, text, flags=re.MULTILINE)[1:]
    instruction = r"^\s*(?:/\*\w+\*/\s+)?(?:@!?\w+ )?([a-zA-Z][\w.]*)[\s;]"
    return {
        name: re.findall(instruction, body, re.MULTILINE)
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def ptx_kernels(nvrtc: ctypes.CDLL, formats: list[str]) -> dict[str, list[str]]:
    return kernels_of(ptx_of(nvrtc, *pyflow_testing.cuda_source(formats)), r"\.entry (\w+)\(")


def test_numbers_are_rounded_as_written(nvrtc: ctypes.CDLL) -> None:
    kernels = ptx_kernels(nvrtc, FORMATS)
    assert {f"matmul_{name}_8" for name in FORMATS} <= kernels.keys()
    for name, instructions in kernels.items():
        for each in instructions:
            word, *suffixes = each.split(".")
            assert not {"ftz", "approx", "full", "local"} & {*suffixes}, (name, each)
            if word in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt") and suffixes[-1] in (
                "f32",
                "f64",
            ):
                assert "rn" in suffixes, (name, each)
            assert not (word == "mad" and suffixes[-1].startswith("f")), (name, each)


def test_a_permutation_of_bytes_keeps_the_fourth_bit_of_its_selector(nvrtc: ctypes.CDLL) -> None:
    ptx = ptx_of(nvrtc, *pyflow_testing.cuda_source(["IQ4_NL"]))
    spread = re.findall(rf"mov\.u32\s+(%r\d+), {0xBA98};", ptx)
    assert spread
    assert re.search(rf"prmt\.b32\s+%r\d+, %r\d+, %r\d+, ({'|'.join(spread)});", ptx)


def sass_kernels(binary: bytes, folder: Path) -> dict[str, list[str]]:
    tool = PACKAGES / "cu13/bin/nvdisasm"
    found = str(tool) if tool.exists() else shutil.which("nvdisasm")
    if not found:
        lacks("nvdisasm")
    file = folder / "kernels.cubin"
    file.write_bytes(binary)
    text = subprocess.run([found, "-c", file], capture_output=True, text=True, check=True).stdout
    return kernels_of(text, r"^//-+ \.text\.(\w+) +-+$")


@pytest.mark.parametrize("capability", [75, 80, 89, 90])
def test_gpus_run_what_was_written(nvrtc: ctypes.CDLL, capability: int, tmp_path: Path) -> None:
    written = ptx_kernels(nvrtc, SOME)
    runs = sass_kernels(code(capability, *SOME), tmp_path)
    products = [name for name in runs if name.startswith("matmul")]
    assert len(products) == 3 * len(SOME) - 1  # F16 has no blocks
    for name, instructions in runs.items():
        words = Counter(each.split(".")[0] for each in instructions)
        assert not words["LDL"] + words["STL"], name  # registers that went to memory
        if name not in products:
            continue
        assert words["FMUL"] == written[name].count("mul.rn.f32"), name
        of_bytes = "IMMA" if name.endswith("units") else "IDP"
        assert {each for each in ("IDP", "IMMA") if words[each]} == (
            set() if "F16" in name else {of_bytes}
        ), name
        flushes = {each for each in instructions if "FTZ" in each}
        assert not [each for each in flushes if each[:2] != "F2"], flushes


@pytest.mark.accept
@pytest.mark.parametrize("capability", [75, 80, 89, 90])
def test_all_formats_compile_without_memory_for_registers(
    nvrtc: ctypes.CDLL, capability: int, tmp_path: Path
) -> None:
    assert nvrtc
    for name, instructions in sass_kernels(code(capability, *FORMATS), tmp_path).items():
        assert not [each for each in instructions if each[:3] in ("LDL", "STL")], name


# libcuda alone is the mock, so NVRTC is the one beside pyflow; its code is not for the mock.
CODE = """
from pyflow import _core
from pyflow.errors import PyflowError
print(_core.devices()["found"][0]["driver"])
try:
    _core.probe_device(0, "", ["F16"], False)
except PyflowError as error:
    print(error)
"""


def test_the_package_beside_pyflow_is_found(
    nvrtc: ctypes.CDLL, mock_cuda: Path, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").symlink_to((mock_cuda / "libcuda.so.1").resolve())
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    driver, error = done.stdout.splitlines()
    assert f"NVRTC {major.value}.{minor.value};" in driver
    assert "loading a program: CUDA_ERROR_NO_BINARY_FOR_GPU" in error
