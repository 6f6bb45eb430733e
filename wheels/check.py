"""Runs the wheels of dist/wheels where they are meant to run: `make check-wheels`.

usage: python wheels/check.py [ENVIRONMENT ...]     (without: all; names as below)

Each environment is a Python and a C library of a release of Debian, unpacked beside this machine's
own and started without root's rights; AArch64 is emulated by qemu. There the wheel answers what
probe.py asks, and every answer must have the bits of the pyflow that runs this program. Before
that, an older loader must find all symbols of every wheel.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packages import Apt, require, run
from targets import PLATFORMS, PYTHONS, Platform

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build/wheels"
OUT = ROOT / "dist/wheels"
MODEL = "smollm2"
GOLDEN = ROOT / "tests/golden/continuations_smollm2.json"
TEXT = ROOT / "LICENSE"
NEWEST_GLIBC = 36  # 2.36, that of the oldest environment: newer wheels of other packages stay out

# The oldest release of Debian that apt still has. Its Python is older than pyflow's oldest.
OLDEST_SUITE = "bullseye"  # glibc 2.31


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    machine: str
    version: str  # of Python
    suite: str  # whose C library it has
    n_prompts: int
    qemu: tuple[str, ...] = ()
    kernels: str = ""  # that must have been chosen, where the emulated CPU says so

    @property
    def platform(self) -> Platform:
        return next(p for p in PLATFORMS if p.machine == self.machine)

    @property
    def tag(self) -> str:
        return next(p for p in PYTHONS if p.version == self.version).tag


EMULATED = ("qemu-aarch64", "-cpu", "max")
ENVIRONMENTS = (
    Environment("x86_64-3.11", "x86_64", "3.11", "bookworm", 40),
    Environment("x86_64-3.13", "x86_64", "3.13", "trixie", 4),
    Environment("x86_64-3.14", "x86_64", "3.14", "forky", 4),
    Environment("aarch64-3.11", "aarch64", "3.11", "bookworm", 2, EMULATED, "neon"),
    Environment("aarch64-3.13", "aarch64", "3.13", "trixie", 1, EMULATED, "neon"),
    Environment("aarch64-3.14", "aarch64", "3.14", "forky", 1, EMULATED, "neon"),
)


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def unpacked_root(suite: str, platform: Platform, *packages: str) -> Path:
    """A folder with packages of a release and all that they need, made on first use."""
    root = WORK / "roots" / f"{suite}-{platform.machine}"
    if (root / ".complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    apt = Apt(suite, platform.debian, WORK / "apt" / root.name)
    apt.unpack(*packages, into=root, dependencies=True)
    for name in ("lib", "lib64"):  # Debian makes these links when it installs
        if (root / "usr" / name).exists() and not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    (root / ".complete").touch()
    return root


def unresolved(wheel: Path, platform: Platform) -> list[str]:
    """What the loader of the oldest release misses of the C library, loading a wheel's module."""
    root = unpacked_root(OLDEST_SUITE, platform, "libc6")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.startswith("pyflow/_core.cpython"))
        module = archive.extract(name, WORK / "modules")
    trace = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_BIND_NOW": "1", "LD_WARN": "yes"}
    start: list[str | Path] = ["env", *map("=".join, trace.items())]
    if platform.machine == "aarch64":  # for the emulated loader, not for qemu's own
        start = [*EMULATED, *(w for s in trace.items() for w in ("-E", "=".join(s))), "-L", root]
    loaders = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
    start += [root / loaders[platform.machine]]
    folders = f"{root}/lib/{platform.machine}-linux-gnu"
    done = subprocess.run(
        [*start, "--library-path", folders, module], capture_output=True, text=True, check=False
    )
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
    for minor in range(NEWEST_GLIBC, 4, -1):
        options += ["--platform", f"manylinux_2_{minor}_{where.machine}"]
    for old in ("manylinux2014", "manylinux2010", "manylinux1"):
        options += ["--platform", f"{old}_{where.machine}"]
    run(*pip, *options, wheel)
    return site


def ask(where: Environment, model: Path, n_prompts: int) -> dict[str, Any]:
    """The wheel's answers in an environment."""
    wheel = next(OUT.glob(f"*-{where.tag}-{where.tag}-*{where.machine}.whl"), None)
    if wheel is None:
        sys.exit(
            f"{OUT}: no wheel for Python {where.version} on {where.machine}: run 'make wheels'"
        )
    root = unpacked_root(where.suite, where.platform, f"python{where.version}", "libstdc++6")
    site, home = install(where, wheel), root / "usr"
    python = home / f"bin/python{where.version}"
    if where.qemu:
        start = [*where.qemu, "-L", root, python]
    else:
        folders = [root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu"]
        loader = root / "lib64/ld-linux-x86-64.so.2"
        start = [loader, "--library-path", ":".join(map(str, folders)), python]
    return probe(start, {"PYTHONHOME": str(home), "PYTHONPATH": str(site)}, model, n_prompts)


def probe(
    start: Sequence[str | Path], environment: dict[str, str], model: Path, n_prompts: int
) -> dict[str, Any]:
    command = [*start, "-P", Path(__file__).with_name("probe.py"), model, GOLDEN, TEXT]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= environment | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, str(n_prompts)], env=clean, cwd=WORK, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}failed ({done.returncode})")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def differences(where: Environment, found: dict[str, Any], here: dict[str, Any]) -> list[str]:
    wrong = [
        f"{key}: {name}: expected {here[key][name]}, found {value}"
        for key in here
        if key.startswith("answers")
        for name, value in found[key].items()
        if value != here[key][name]
    ]
    if where.kernels and found["kernels"] != where.kernels:
        wrong.append(f"kernels: expected {where.kernels}, found {found['kernels']}")
    return wrong


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
    for name in names or known:
        where, start = known[name], time.monotonic()
        if where.qemu:
            require("qemu-aarch64")
        found = ask(where, model, where.n_prompts)
        here = probe([sys.executable], {}, model, where.n_prompts)
        wrong = differences(where, found, here)
        what = ", ".join(found[key] for key in ("machine", "python", "libc", "kernels"))
        verdict = "the same bits as here" if not wrong else "\n   ".join(["DIFFERS", *wrong])
        say(f"{name}: {what}: {verdict}, {time.monotonic() - start:.0f} s")
        failed += [name] if wrong else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    say("all answer alike")


if __name__ == "__main__":
    main(sys.argv[1:])
