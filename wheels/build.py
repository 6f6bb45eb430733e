"""Builds the wheels of all platforms and Pythons on one machine: `make wheels`.

usage: python wheels/build.py [--machine x86_64] [--python 3.11]   (either may be repeated)

zig, a clang with the headers and stubs of every glibc, compiles the core once per platform. The
bindings, a few files, are compiled against the headers of each Python. The rest of a wheel is the
same for all: the project's own backend packs it once, without a module.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pybind11
import ziglang
from packages import Apt, headers_3_12, run
from targets import PLATFORMS, PYTHONS, Platform, Python
from wheel.wheelfile import WheelFile

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build/wheels"
OUT = ROOT / "dist/wheels"
ZIG = Path(ziglang.__file__).with_name("zig")

WHEEL_FILE = """Wheel-Version: 1.0
Generator: pyflow wheels/build.py
Root-Is-Purelib: false
Tag: {tag}
"""


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def headers(python: Python, platform: Platform) -> Path:
    """The folder with Python.h and pyconfig.h of a Python, fetched on first use."""
    folder = WORK / "headers" / f"{python.tag}-{platform.machine}"
    include = folder / "include"
    if include.exists():
        return include
    say(f"headers of Python {python.version} for {platform.machine}")
    shutil.rmtree(folder, ignore_errors=True)
    if python.suite is None:
        headers_3_12(folder / "unpacked", folder / "wheel")
        (folder / "unpacked").rename(include)
        return include
    apt = Apt(python.suite, platform.debian, folder / "apt")
    apt.unpack(f"libpython{python.version}-dev", into=folder / "unpacked", dependencies=False)
    found = folder / "unpacked/usr/include"
    name = f"python{python.version}"
    # Python's own pyconfig.h, in place of Debian's that asks for the architecture.
    own = found / f"{platform.machine}-linux-gnu" / name / "pyconfig.h"
    own.replace(found / name / "pyconfig.h")
    (found / name).rename(include)
    return include


def tools(platform: Platform) -> Path:
    """A folder with a compiler and an archiver for the platform, as programs without arguments."""
    folder = WORK / platform.machine / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    for name, call in {
        "c++": f"c++ -target {platform.zig}",
        "ar": "ar",
        "ranlib": "ranlib",
    }.items():
        script = f'#!/bin/sh\nexec "{ZIG}" {call} "$@"\n'
        if not (folder / name).exists() or (folder / name).read_text() != script:
            (folder / name).write_text(script)  # ccache takes a new one for another compiler
            (folder / name).chmod(0o755)
    return folder


def configure(platform: Platform, python: Python) -> Path:
    """Points the platform's build folder at a Python; objects of the core stay as they are."""
    build = WORK / platform.machine / "cmake"
    (build / "CMakeCache.txt").unlink(missing_ok=True)
    compiler = tools(platform)
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": platform.machine,
        "CMAKE_CXX_COMPILER": compiler / "c++",
        "CMAKE_AR": compiler / "ar",
        "CMAKE_RANLIB": compiler / "ranlib",
        "CMAKE_BUILD_TYPE": "Release",
        # Unless told, zig writes debug information, a third of its time, and keeps frame pointers:
        # the scalar kernels are 1.27 times as fast without.
        "CMAKE_CXX_FLAGS": "-g0 -fomit-frame-pointer -ffunction-sections -fdata-sections",
        "CMAKE_MODULE_LINKER_FLAGS": "-s -Wl,--gc-sections",
        "PYFLOW_NEON_FLAGS": "-mcpu=generic+v8_2a+dotprod",
        "Python_INCLUDE_DIR": headers(python, platform),
        "PYBIND11_USE_CROSSCOMPILING": "ON",
        "PYTHON_MODULE_EXTENSION": python.module(platform.machine).removeprefix("_core"),
        "PYTHON_MODULE_DEBUG_POSTFIX": "",
        "PYTHON_IS_DEBUG": "OFF",
        "pybind11_DIR": pybind11.get_cmake_dir(),
    }
    options = [f"-D{name}={value}" for name, value in defines.items()]
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options)
    return build


def compile_module(platform: Platform, python: Python) -> Path:
    build = configure(platform, python)
    jobs = str(len(os.sched_getaffinity(0)))
    run("cmake", "--build", build, "--target", "_core", "--parallel", jobs, shown=True)
    return build / python.module(platform.machine)


def pack_base() -> Path:
    """A wheel of everything but the module."""
    folder = WORK / "base"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "-C", "wheel.cmake=false", "-w", folder]
    run(*pip, "wheel", *options, ROOT)
    (base,) = folder.glob("*.whl")
    return base


def pack(base: Path, module: Path, platform: Platform, python: Python) -> Path:
    """base and module, tagged for this Linux; auditwheel then holds it to the platform's tag."""
    tag = f"{python.tag}-{python.tag}-linux_{platform.machine}"
    distribution, version, *_ = base.name.split("-")
    plain = WORK / "plain" / f"{distribution}-{version}-{tag}.whl"
    plain.parent.mkdir(exist_ok=True)
    with WheelFile(base) as source, WheelFile(plain, "w") as wheel:
        for info in source.infolist():
            if info.filename.endswith(".dist-info/WHEEL"):
                wheel.writestr(info, WHEEL_FILE.format(tag=tag))
            elif not info.filename.endswith(".dist-info/RECORD"):
                wheel.writestr(info, source.read(info))
        wheel.write(module, f"pyflow/{module.name}")
    # "auto", for by name auditwheel only knows the platforms of the machine that it runs on.
    repair = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto"]
    ours = f"*-{python.tag}-*{platform.machine}.whl"
    for earlier in OUT.glob(ours):
        earlier.unlink()
    run(*repair, "--zip-compression-level", "9", "-w", OUT, plain)
    (made,) = OUT.glob(ours)
    if platform.tag not in made.name:
        sys.exit(f"{made.name}: expected {platform.tag}; auditwheel show {plain} says why")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build wheels for all platforms and Pythons.")
    machines, versions = [p.machine for p in PLATFORMS], [p.version for p in PYTHONS]
    parser.add_argument("--machine", action="append", choices=machines)
    parser.add_argument("--python", action="append", choices=versions)
    asked = parser.parse_args(arguments)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(WORK / "zig")
    os.environ["ZIG_LOCAL_CACHE_DIR"] = str(WORK / "zig")
    OUT.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    base = pack_base()
    for platform in PLATFORMS:
        for python in PYTHONS:
            if platform.machine not in (asked.machine or machines):
                continue
            if python.version not in (asked.python or versions):
                continue
            say(f"Python {python.version} for {platform.zig}")
            module = compile_module(platform, python)
            made = pack(base, module, platform, python)
            size, unpacked = made.stat().st_size / 1e6, module.stat().st_size / 1e6
            took = f"{time.monotonic() - start:.0f} s"
            say(f"{made.relative_to(ROOT)}: {size:.2f} MB, module {unpacked:.2f} MB, {took}")


if __name__ == "__main__":
    main()
