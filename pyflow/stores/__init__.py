"""Models that other programs keep on this machine: found, named and opened, never written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

from pyflow.errors import FormatError
from pyflow.hub.quants import label_of, normal
from pyflow.stores import folders, hub_cache, ollama
from pyflow.stores.folders import LLAMA_CPP, LM_STUDIO
from pyflow.stores.stored import Aside, Stored
from pyflow.text import printable

# By the prefix of its names, each store: the models of all folders that it may have.
_STORES: dict[str, Callable[[], Iterator[Iterator[Stored | Aside]]]] = {
    ollama.PREFIX: lambda: map(ollama.models, ollama.folders()),
    LM_STUDIO: lambda: (folders.models(top, LM_STUDIO) for top in folders.lm_studio()),
    LLAMA_CPP: lambda: (folders.models(top, LLAMA_CPP) for top in folders.llama_cpp()),
}
PREFIXES = tuple(_STORES)

__all__ = ["PREFIXES", "Aside", "Stored", "found", "of_hub", "resolve"]


def found() -> Iterator[Stored | Aside]:
    """All models of ollama, LM Studio, llama.cpp's cache and the hub's cache."""
    for prefix in PREFIXES:
        yield from _of_store(prefix)
    yield from of_hub()


def of_hub() -> Iterator[Stored | Aside]:
    """The models of the hub's cache."""
    return hub_cache.models()


def resolve(name: str) -> Path:
    """The file of a name that begins with one of PREFIXES; FormatError: it is not there."""
    prefix = next(p for p in PREFIXES if name.lower().startswith(p))
    rest = name[len(prefix) :]
    wanted = prefix + (ollama.full_name(rest) if prefix == ollama.PREFIX else rest)
    aside = []
    known: dict[str, Stored] = {}
    for one in _of_store(prefix):
        if isinstance(one, Stored):
            known.setdefault(one.name.lower(), one)
        else:
            aside.append(one)
    if wanted.lower() in known:
        return known[wanted.lower()].path
    below = [one for key, one in known.items() if _is_short(wanted.lower(), key)]
    if len(below) == 1:
        return below[0].path
    if below:
        names = ", ".join(printable(one.name) for one in below[:8])
        raise FormatError(f"{printable(name)}: names several models; take one of {names}")
    near = difflib.get_close_matches(wanted.lower(), known, n=1)
    hint = f"did you mean {printable(known[near[0]].name)}? " if near else ""
    lost = f"; {len(aside)} cannot be used, 'pyflow list --local -v' says why" if aside else ""
    raise FormatError(
        f"{printable(name)}: no such model in its store; {hint}'pyflow list --local' shows"
        f" {len(known)} there{lost}"
    )


def _is_short(wanted: str, name: str) -> bool:
    """Whether `wanted` names the folder of a model, also with :QUANT, or its file without .gguf."""
    folder, _, quant = wanted.rpartition(":")
    if name.startswith(f"{folder}/") and label_of(name.removesuffix(".gguf")) == normal(quant):
        return True
    return name.startswith(f"{wanted}/") or name == f"{wanted}.gguf"


def _of_store(prefix: str) -> Iterator[Stored | Aside]:
    """Each model once, from the first folder that has it."""
    named = set()
    for models in _STORES[prefix]():
        for one in models:
            if isinstance(one, Aside):
                yield one
            elif one.name not in named:
                named.add(one.name)
                yield one
