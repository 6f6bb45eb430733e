"""ollama's models: manifests that name blobs.

manifests/HOST/NAMESPACE/MODEL/TAG   JSON: layers, each with a media type, a digest and a size
blobs/sha256-DIGEST                  the bytes of a layer
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from pyflow.errors import FormatError
from pyflow.formats.side_files import read_json
from pyflow.stores.stored import Aside, Stored

PREFIX = "ollama:"
_WEIGHTS = "application/vnd.ollama.image.model"
SERVICE = Path("/usr/share/ollama/.ollama/models")
_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MOST_BYTES = 1 << 20  # of a manifest, which has some hundred


class _Layer(Struct):
    kind: str = field(name="mediaType")
    digest: str
    size: int


class _Manifest(Struct):
    layers: list[_Layer]


def folders() -> list[Path]:
    """$OLLAMA_MODELS, or the folders that ollama uses by itself and as a service."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    return [Path.home() / ".ollama/models", SERVICE]


def full_name(name: str) -> str:
    """A name with its tag, as ollama completes it."""
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"


def models(folder: Path) -> Iterator[Stored | Aside]:
    """The models of one folder."""
    top = folder / "manifests"
    for manifest in sorted(path for path in top.glob("*/*/*/*") if not path.is_dir()):
        try:
            digest, size = _weights(manifest)
        except FormatError as error:
            yield Aside(manifest, str(error).removeprefix(f"{manifest}: "))
            continue
        blob = folder / "blobs" / f"sha256-{digest}"
        try:
            there = blob.stat().st_size
        except OSError as error:
            yield Aside(manifest, f"its weights, {blob.name}: {error.strerror}")
            continue
        if there != size:
            yield Aside(blob, f"expected {size} bytes, found {there}; 'ollama pull' completes it")
        else:
            yield Stored(PREFIX + _name(manifest.relative_to(top).parts), blob, there)


def _name(parts: tuple[str, ...]) -> str:
    host, namespace, model, tag = parts
    shown = [namespace, model] if namespace != _NAMESPACE or host != _HOST else [model]
    return "/".join([host, *shown] if host != _HOST else shown) + f":{tag}"


def _weights(manifest: Path) -> tuple[str, int]:
    """Digest and size of the weights; FormatError: the manifest names none, or several."""
    found = read_json(manifest, _Manifest, max_nbytes=_MOST_BYTES)
    layers = [layer for layer in found.layers if layer.kind == _WEIGHTS]
    digest = _DIGEST.fullmatch(layers[0].digest) if len(layers) == 1 else None
    if digest is None:
        raise FormatError(f"{manifest}: expected one layer of weights, found {len(layers)}")
    return digest[1], layers[0].size
