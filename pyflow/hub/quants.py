"""The models among the GGUF files of a repository: one per quant, in one file or several parts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyflow.errors import FormatError
from pyflow.hub.listing import RemoteFile

# Best first, for a machine with room for all: 4 bits are the usual choice, and more bits come
# before fewer ones. Types that this build cannot run, or that take more bytes in memory than in
# files, are not here.
ORDER = (
    *("Q4_K_M", "Q4_K_L", "Q4_K_S", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_0", "Q4"),
    *("MXFP4_MOE", "MXFP4"),
    *("Q5_K_M", "Q5_K_L", "Q5_K_S", "Q5_1", "Q5_0", "Q5", "Q6_K", "Q6_K_L", "Q6", "Q8_0", "Q8"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "Q3", "Q2_K", "Q2_K_L", "Q2_K_S", "Q2", "BF16", "F16", "F32"),
)
_LABEL = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I|T)?Q\d(?:_[A-Z0-9]+)*|BF16|FP?16|FP?32|MXFP4(?:_MOE)?)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_MOST_PARTS = 4096
# Encoders of images and measurements, which come beside a model.
_ASIDE = re.compile(r"(?:^|[^a-z])(?:mmproj|imatrix)(?:[^a-z]|$)")


@dataclass(frozen=True, slots=True)
class Quant:
    """One model: its files, the first part first."""

    label: str
    """In capitals, as in Q4_K_M; empty if its name has none."""
    stem: str
    """Its path without .gguf, and without the number of the part."""
    files: tuple[RemoteFile, ...]

    @property
    def nbytes(self) -> int | None:
        """Of all files; None if one is unknown."""
        sizes = [file.nbytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def short(self) -> str:
        """What names it in its repository: the label, or the first file's name."""
        return self.label or self.files[0].name


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def is_aside(name: str) -> bool:
    """Whether a GGUF file holds no language model."""
    return _ASIDE.search(name.rsplit("/", 1)[-1].lower()) is not None


def quants(files: Iterable[RemoteFile]) -> list[Quant]:
    """The models of GGUF files, by name. A model that lacks a part is left out."""
    parts: dict[str, dict[tuple[int, int], RemoteFile]] = {}
    for file in files:
        if is_gguf(file.name) and not is_aside(file.name):
            stem = file.name[: -len(".gguf")]
            part = _PART.search(stem)
            number = (int(part[1]), int(part[2])) if part else (1, 1)
            parts.setdefault(_PART.sub("", stem) + (f"/{number[1]}" if part else ""), {})[
                number
            ] = file
    found = []
    for numbered in parts.values():
        count = next(iter(numbered))[1]
        whole = 1 <= count <= _MOST_PARTS and set(numbered) == {
            (i, count) for i in range(1, count + 1)
        }
        if whole:
            ordered = tuple(numbered[number] for number in sorted(numbered))
            stem = _PART.sub("", ordered[0].name[: -len(".gguf")])
            found.append(Quant(label_of(stem), stem, ordered))
    return sorted(found, key=lambda quant: quant.stem)


def label_of(stem: str) -> str:
    """The quant in a file's name, or in the name of its folder."""
    for part in reversed(stem.split("/")):
        if found := _LABEL.findall(part):
            return normal(str(found[-1]))
    return ""


def normal(label: str) -> str:
    """A label in capitals and by its usual name."""
    return label.upper().replace("FP16", "F16").replace("FP32", "F32")


def matching(found: list[Quant], wanted: str) -> list[Quant]:
    """Those that `wanted` names: by a file, else by the quant, else by the end of the quant."""
    name = wanted.lower()
    bare = _PART.sub("", name.removesuffix(".gguf"))
    for names in (
        lambda q: any(wanted == f.name for f in q.files),
        lambda q: any(name == f.name.lower() for f in q.files),
        lambda q: any(name == f.name.lower().rsplit("/", 1)[-1] for f in q.files),
        lambda q: bare in (q.stem.lower(), q.stem.lower().rsplit("/", 1)[-1]),
        lambda q: name == q.stem.lower().rpartition("/")[0],
        lambda q: normal(wanted) == q.label,
        lambda q: q.label.endswith(f"-{normal(wanted)}"),
    ):
        if chosen := [quant for quant in found if names(quant)]:
            return chosen
    return []


def one_of(found: list[Quant], wanted: str, where: str) -> Quant:
    """The model that `wanted` names; FormatError if none or several are."""
    chosen = matching(found, wanted)
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(quant.files[0].name for quant in chosen[:8])
        raise FormatError(f"{where}: {wanted!r} names {len(chosen)} models; name a file: {names}")
    raise missing(where, wanted, [quant.short for quant in found])


def missing(where: str, wanted: str, known: list[str]) -> FormatError:
    """There is no `wanted` among the known: the nearest of them, and all."""

    by_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wanted.lower(), by_case, n=1, cutoff=0.5)
    hint = f", did you mean {by_case[near[0]]}?" if near else ""
    shown = ", ".join(known[:40]) + (f" and {len(known) - 40} more" if len(known) > 40 else "")
    return FormatError(f"{where}: expected one of {shown or 'none'}; found {wanted!r}{hint}")
