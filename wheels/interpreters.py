"""Pythons to run wheels with: unpacked beside this machine's own, started without root's rights."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packages import Apt, pip_download
from targets import PYTHONS, Platform

WORK = Path(__file__).parents[1] / "build/wheels"
LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
EMULATED = {"aarch64": ("qemu-aarch64", "-cpu", "max")}

# The oldest release of Debian that apt still has. Its Python is older than pyflow's oldest.
OLDEST_SUITE, OLDEST_GLIBC = "bullseye", 31  # 2.31

# The programs that cx_Freeze puts before a script: whole interpreters, built for glibc 2.17. They
# lack only the part of the standard library that is Python source.
FROZEN = "freeze-core==0.8.1"

# What such a program runs instead of a frozen script. It takes no options.
RUN_SCRIPT = """def run(_name):
    import os
    import sys

    sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.argv.pop(0)
    import runpy

    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    start: tuple[str | Path, ...]  # what a script follows
    path: tuple[Path, ...] = ()  # of its standard library, if it does not know that
    home: Path | None = None

    def environment(self, site: Path) -> dict[str, str]:
        found = {"PYTHONPATH": ":".join(map(str, (site, *self.path)))}
        return found | ({"PYTHONHOME": str(self.home)} if self.home else {})


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


def oldest_root(platform: Platform) -> Path:
    # libz: manylinux lets wheels expect it, and that of numpy for AArch64 does.
    return unpacked_root(OLDEST_SUITE, platform, "libc6", "libstdc++6", "zlib1g")


def under(root: Path, platform: Platform) -> tuple[str | Path, ...]:
    """What starts a program with the C library of an unpacked release, and no other."""
    if platform.machine in EMULATED:
        return (*EMULATED[platform.machine], "-L", root)
    folders = [root / f"{lib}/{platform.machine}-linux-gnu" for lib in ("lib", "usr/lib")]
    loader = root / LOADERS[platform.machine]
    return (loader, "--library-path", ":".join(map(str, folders)))


def debian_root(version: str, suite: str, platform: Platform) -> Path:
    return unpacked_root(suite, platform, f"python{version}", "libstdc++6")


def debian_python(version: str, suite: str, platform: Platform) -> Interpreter:
    """The Python of a release, with its C library."""
    root = debian_root(version, suite, platform)
    start = (*under(root, platform), root / f"usr/bin/python{version}")
    return Interpreter(start, home=root / "usr")


def frozen_python(version: str, platform: Platform) -> Interpreter | None:
    """A Python of the package index with the oldest C library; None without its library."""
    library = _library(version, platform)
    if library is None:
        return None
    folder = WORK / "frozen" / f"{version}-{platform.machine}"
    programs = folder / "freeze_core/bases"
    program = programs / "python"
    if not program.exists():
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--only-binary", ":all:", "--python-version", version]
        options += ["--platform", f"manylinux2014_{platform.machine}"]
        wheel = pip_download(FROZEN, *options, into=folder / "wheel")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (programs / "lib").mkdir()
        (programs / "lib/__init__python.py").write_text(RUN_SCRIPT)
        (found,) = programs.glob("console-cpython-*")
        found.chmod(0o755)
        found.rename(program)
    start = (*under(oldest_root(platform), platform), program)
    return Interpreter(start, (library, folder / "freeze_core/lib"))


def _library(version: str, platform: Platform) -> Path | None:
    """The Python sources of a version's standard library: Debian's, or else this machine's."""
    suite = next(python.suite for python in PYTHONS if python.version == version)
    if suite is not None:
        return debian_root(version, suite, platform) / f"usr/lib/python{version}"
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    own = shutil.which(f"python{version}")
    if own is None:
        return None
    done = subprocess.run([own, "-c", ask], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None
