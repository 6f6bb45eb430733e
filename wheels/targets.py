"""What wheels are made for: the one list of platforms and Pythons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    machine: str  # as `uname -m` says it
    debian: str  # Debian's name of the architecture
    glibc: tuple[int, int]  # the oldest that the wheel runs with

    @property
    def zig(self) -> str:
        return f"{self.machine}-linux-gnu.{self.glibc[0]}.{self.glibc[1]}"

    @property
    def tag(self) -> str:
        return f"manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"


@dataclass(frozen=True, slots=True)
class Python:
    version: str  # "3.11"
    suite: str | None  # the release of Debian that has its headers; None: a wheel of PyPI has them

    @property
    def tag(self) -> str:
        return "cp" + self.version.replace(".", "")

    def module(self, machine: str) -> str:
        """The file name under which this Python looks for pyflow._core."""
        return f"_core.cpython-{self.version.replace('.', '')}-{machine}-linux-gnu.so"


PLATFORMS = (
    Platform("x86_64", "amd64", (2, 17)),
    Platform("aarch64", "arm64", (2, 17)),
)
PYTHONS = (
    Python("3.11", "bookworm"),
    Python("3.12", None),
    Python("3.13", "trixie"),
    Python("3.14", "forky"),
)
