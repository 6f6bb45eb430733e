"""Files out of packages of Debian and PyPI, unpacked into folders; nothing is installed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# No release of Debian has Python 3.12. This wheel carries the headers that it was built with; its
# pyconfig.h serves AArch64 too: Debian's two for 3.13 differ only in what no header reads.
HEADERS_3_12 = "tensorflow_cpu==2.16.1"
HEADERS_3_12_SHA256 = "aea6520308b1f15511e69bd40b52ba9478143e6e1e8e49d57cd36410321b7b6f"
HEADERS_3_12_FOLDER = "tensorflow/include/external/local_config_python/python_include/"


def run(*command: str | Path, cwd: Path | None = None, shown: bool = False) -> str:
    """What a command prints, unless it shows that itself. If it fails, this program ends."""
    out = None if shown else subprocess.PIPE
    done = subprocess.run(
        command, cwd=cwd, text=True, stdout=out, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}failed ({done.returncode}): {' '.join(map(str, command))}")
    return done.stdout or ""


def require(*programs: str) -> None:
    """Ends this program if others are missing, by the names of Debian's packages."""
    packages = {"apt-get": "apt", "qemu-aarch64": "qemu-user"}
    missing = [packages.get(name, name) for name in programs if not shutil.which(name)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}; on Debian: apt-get install NAME")


def _mirror() -> str:
    """The archive that this machine's apt uses."""
    wanted = ["Origin: Debian", "Label: Debian", "Created-By: Packages"]
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    if not found:
        sys.exit("apt knows no archive of Debian: run 'apt-get update' as root on a Debian machine")
    return found[0]


class Apt:
    """apt for one release and architecture of Debian, apart from this machine's own."""

    def __init__(self, suite: str, architecture: str, folder: Path) -> None:
        require("apt-get", "dpkg")
        if not KEYRING.exists():
            sys.exit(f"{KEYRING} is not there: apt-get install debian-archive-keyring")
        self.cache = folder / "cache"
        (folder / "state/lists/partial").mkdir(parents=True, exist_ok=True)
        (self.cache / "archives/partial").mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(
            f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n"
        )
        settings = {
            "Dir::State": folder / "state",
            "Dir::State::status": folder / "status",
            "Dir::Cache": self.cache,
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
        }
        self._apt = ["apt-get", "-q"]
        for name, value in settings.items():
            self._apt += ["-o", f"{name}={value}"]
        run(*self._apt, "update")

    def unpack(self, *packages: str, into: Path, dependencies: bool) -> None:
        if dependencies:
            run(*self._apt, "install", "--download-only", "-y", *packages)
            debs = sorted((self.cache / "archives").glob("*.deb"))
        else:
            run(*self._apt, "download", *packages, cwd=self.cache)
            debs = sorted(self.cache.glob("*.deb"))
        into.mkdir(parents=True, exist_ok=True)
        for deb in debs:
            run("dpkg", "-x", deb, into)
        for link in into.rglob("*"):
            target = str(link.readlink()) if link.is_symlink() else ""
            if target.startswith("/") and not target.startswith(str(into)):
                link.unlink()
                link.symlink_to(f"{into}{target}")


def pip_download(requirement: str, *options: str, into: Path) -> Path:
    """The file of one package, without those it needs."""
    into.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    run(*pip, "download", "--no-deps", "-d", into, *options, requirement)
    (found,) = into.iterdir()
    return found


def headers_3_12(into: Path, work: Path) -> None:
    options = ["--only-binary", ":all:", "--python-version", "3.12"]
    options += ["--platform", "manylinux2014_x86_64"]
    wheel = pip_download(HEADERS_3_12, *options, into=work)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != HEADERS_3_12_SHA256:
        sys.exit(f"{wheel.name}: expected sha256 {HEADERS_3_12_SHA256}, found {found}")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.removeprefix(HEADERS_3_12_FOLDER)
            if inside != name and inside and not inside.endswith("/"):
                (into / inside).parent.mkdir(parents=True, exist_ok=True)
                (into / inside).write_bytes(archive.read(name))
    wheel.unlink()
