"""Runs the wheels of dist/wheels where they are meant to run: `make check-wheels`.

usage: python wheels/check.py [ENVIRONMENT ...]     (without: all; names as below)

Each environment is a Python and a C library, unpacked beside this machine's own; AArch64 is
emulated by qemu. There the wheel answers what probe.py asks, and every answer must have the bits
of the pyflow that runs this program. Before that, an older loader must find all symbols of every
wheel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from interpreters import (
    EMULATED,
    LOADERS,
    OLDEST_GLIBC,
    OLDEST_SUITE,
    WORK,
    Interpreter,
    debian_python,
    frozen_python,
    oldest_root,
)
from packages import require, run
from targets import PLATFORMS, PYTHONS, Platform, Python

ROOT = Path(__file__).parents[1]
OUT = ROOT / "dist/wheels"
MODEL = "smollm2"
GOLDEN = ROOT / "tests/golden/continuations_smollm2.json"
TEXT = ROOT / "LICENSE"


@dataclass(frozen=True, slots=True)
class Environment:
    machine: str
    version: str  # of Python
    n_prompts: int
    oldest: bool = False  # with the C library of OLDEST_SUITE, not that of the Python's release

    @property
    def name(self) -> str:
        return f"{self.machine}-{self.version}" + ("-oldest" if self.oldest else "")

    @property
    def platform(self) -> Platform:
        return next(p for p in PLATFORMS if p.machine == self.machine)

    @property
    def python(self) -> Python:
        return next(p for p in PYTHONS if p.version == self.version)

    def interpreter(self) -> Interpreter | None:
        """None if this machine lacks what it needs."""
        if self.oldest or self.python.suite is None:
            return frozen_python(self.version, self.platform)
        return debian_python(self.version, self.python.suite, self.platform)


ENVIRONMENTS = (
    Environment("x86_64", "3.11", 40, oldest=True),
    Environment("x86_64", "3.12", 4, oldest=True),
    Environment("x86_64", "3.13", 4, oldest=True),
    Environment("x86_64", "3.14", 4, oldest=True),
    Environment("x86_64", "3.11", 4),
    Environment("x86_64", "3.13", 4),
    Environment("x86_64", "3.14", 4),
    Environment("aarch64", "3.12", 1, oldest=True),
    Environment("aarch64", "3.14", 1, oldest=True),
    Environment("aarch64", "3.11", 2),
    Environment("aarch64", "3.13", 1),
    Environment("aarch64", "3.14", 1),
)
KERNELS = {"aarch64": "neon"}  # that must have been chosen, for qemu says what its CPU has


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def unresolved(wheel: Path, platform: Platform) -> list[str]:
    """What the loader of the oldest release misses of the C library, loading a wheel's module."""
    root = oldest_root(platform)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.startswith("pyflow/_core.cpython"))
        module = archive.extract(name, WORK / "modules")
    trace = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_BIND_NOW": "1", "LD_WARN": "yes"}
    start: list[str | Path] = ["env", *map("=".join, trace.items())]
    if platform.machine in EMULATED:  # for the emulated loader, not for qemu's own
        of_qemu = [word for pair in trace.items() for word in ("-E", "=".join(pair))]
        start = [*EMULATED[platform.machine], *of_qemu, "-L", root]
    folders = f"{root}/lib/{platform.machine}-linux-gnu"
    start += [root / LOADERS[platform.machine], "--library-path", folders, module]
    done = subprocess.run(start, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).splitlines()
    if not any("libc.so.6 => " in line for line in said):
        return said or [f"no answer, exit code {done.returncode}"]
    python = re.compile(r"undefined symbol: _?Py")  # an interpreter has these
    return [s for s in said if ("undefined" in s and not python.search(s)) or "not found" in s]


def install(where: Environment, wheel: Path) -> Path:
    """A folder with the wheel and all that it needs, chosen by pip for the environment."""
    site = WORK / "sites" / where.name
    shutil.rmtree(site, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    options = ["--only-binary", ":all:", "--python-version", where.version, "--target", str(site)]
    for minor in range(OLDEST_GLIBC, 4, -1):  # the same packages everywhere
        options += ["--platform", f"manylinux_2_{minor}_{where.machine}"]
    for old in ("manylinux2014", "manylinux2010", "manylinux1"):
        options += ["--platform", f"{old}_{where.machine}"]
    run(*pip, *options, wheel)
    return site


def ask(where: Environment, python: Interpreter, model: Path) -> dict[str, Any]:
    """The wheel's answers in an environment."""
    tag = where.python.tag
    wheel = next(OUT.glob(f"*-{tag}-{tag}-*{where.machine}.whl"), None)
    if wheel is None:
        sys.exit(
            f"{OUT}: no wheel for Python {where.version} on {where.machine}: run 'make wheels'"
        )
    site = install(where, wheel)
    return probe(python.start, python.environment(site), model, where.n_prompts)


def probe(
    start: Sequence[str | Path], environment: Mapping[str, str], model: Path, n_prompts: int
) -> dict[str, Any]:
    command = [*start, Path(__file__).with_name("probe.py"), model, GOLDEN, TEXT]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= environment | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [*command, str(n_prompts)], env=clean, cwd=WORK, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}failed ({done.returncode})")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@cache
def here(model: Path, n_prompts: int) -> dict[str, Any]:
    """The answers of the pyflow that runs this program."""
    return probe([sys.executable], {}, model, n_prompts)


def differences(where: Environment, found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    wrong = [
        f"{key}: {name}: expected {wanted[key][name]}, found {value}"
        for key in wanted
        if key.startswith("answers")
        for name, value in found[key].items()
        if value != wanted[key][name]
    ]
    kernels = KERNELS.get(where.machine, found["kernels"])
    if found["kernels"] != kernels:
        wrong.append(f"kernels: expected {kernels}, found {found['kernels']}")
    return wrong


def compare(where: Environment, model: Path) -> bool:
    """Whether the wheel answers there as pyflow does here, or cannot be asked."""
    start = time.monotonic()
    if where.machine in EMULATED:
        require(EMULATED[where.machine][0])
    python = where.interpreter()
    if python is None:
        say(f"{where.name}: NOT RUN: needs a python{where.version} on PATH for its library")
        return True
    found = ask(where, python, model)
    wrong = differences(where, found, here(model, where.n_prompts))
    what = ", ".join(found[key] for key in ("machine", "python", "libc", "kernels"))
    verdict = "the same bits as here" if not wrong else "\n   ".join(["DIFFERS", *wrong])
    say(f"{where.name}: {what}: {verdict}, {time.monotonic() - start:.0f} s")
    return not wrong


def main(names: Sequence[str]) -> None:
    known = {where.name: where for where in ENVIRONMENTS}
    if unknown := set(names) - set(known):
        sys.exit(f"no such environment: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    from pyflow import catalogue

    model = catalogue.resolve(MODEL)
    failed = []
    for platform in PLATFORMS:
        for wheel in sorted(OUT.glob(f"*_{platform.machine}.whl")):
            missing = unresolved(wheel, platform)
            verdict = "\n   ".join(["MISSING", *missing]) if missing else "all symbols found"
            say(f"{wheel.name}: loader of {OLDEST_SUITE}: {verdict}")
            failed += [wheel.name] if missing else []
    failed += [name for name in names or known if not compare(known[name], model)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    say("all answer alike")


if __name__ == "__main__":
    main(sys.argv[1:])
