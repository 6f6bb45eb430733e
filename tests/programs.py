"""C++ programs of the tests, compiled once per state of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[1]
# A sanitizer preloaded for the extension does not go together with a plain program or another one.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


class BuildError(Exception):
    """The command and what the compiler said."""


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def build(
    sources: Sequence[Path], flags: Sequence[str] = (), libraries: Sequence[Path] = ()
) -> Path:
    """The path of a program under build/tests, compiled from the sources on all CPUs.

    It is compiled again if the compiler, the flags, a source, a library or any header has changed.
    Raises BuildError.
    """
    command = [compiler(), "-std=c++20", "-pthread", f"-I{ROOT / 'csrc'}", *flags]
    state = hashlib.sha256(repr((command, list(map(str, sources)))).encode())
    headers = [p for kind in ("h", "inl", "def") for p in (ROOT / "csrc").rglob(f"*.{kind}")]
    beside = {header for source in sources for header in source.parent.glob("*.h")}
    for path in [*sources, *libraries, *sorted({*headers, *beside})]:
        state.update(path.read_bytes())
    program = ROOT / "build/tests" / f"{sources[0].stem}-{state.hexdigest()[:16]}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(dir=program.parent))
    try:
        objects = [folder / f"{i}-{source.stem}.o" for i, source in enumerate(sources)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            pairs = zip(sources, objects, strict=True)
            list(pool.map(lambda pair: _run([*command, "-c", pair[0], "-o", pair[1]]), pairs))
        _run([*command, *objects, *libraries, "-o", folder / "program"])
        (folder / "program").rename(program)  # whole, also if another run builds it as well
    finally:
        shutil.rmtree(folder)
    return program


def run(*command: str | Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a program without the sanitizer that may be preloaded for the tests."""
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def _run(command: Sequence[str | Path]) -> None:
    try:
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"no C++ compiler '{command[0]}': install g++, or set CXX") from error
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}:\n{done.stderr}")
