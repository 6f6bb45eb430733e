"""Model families: from a checkpoint's metadata to a `ModelSpec`. One file and one line each."""

from __future__ import annotations

from collections.abc import Callable

from pyflow.formats import Checkpoint

from ..errors import UnsupportedError
from ..spec import ModelSpec
from . import gemma3, llama, qwen2
from .metadata import Metadata

FAMILIES: dict[str, Callable[[Metadata], ModelSpec]] = {
    "llama": llama.build,
    "qwen2": qwen2.build,
    "gemma3": gemma3.build,
}


def build_spec(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of the model in a checkpoint.

    Raises FormatError for missing or malformed metadata, UnsupportedError for a family that is not
    known here.
    """
    metadata = Metadata.of(checkpoint)
    build = FAMILIES.get(metadata.architecture)
    if build is None:
        raise UnsupportedError(
            f"{metadata.source}: general.architecture: {metadata.architecture!r} is not supported; "
            f"known families: {', '.join(sorted(FAMILIES))}"
        )
    return build(metadata)
