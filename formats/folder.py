"""Find the checkpoint in a folder."""

from __future__ import annotations

import re
from pathlib import Path

from pyflow.errors import FormatError

# The layout of hubs; the first pattern that matches wins. safetensors beside PyTorch files hold the
# same weights.
_PATTERNS = (
    "*.safetensors.index.json",
    "*.safetensors",
    "*.bin.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
)


def main_file(folder: Path) -> Path:
    """The checkpoint in a folder; FormatError if there is none or more than one."""
    for pattern in _PATTERNS:
        found = sorted(p for p in folder.glob(pattern) if p.is_file())
        # The first part of a split model opens all parts.
        found = [
            p
            for p in found
            if re.search(r"-\d{5}-of-\d{5}\.gguf$", p.name) is None or "-00001-of-" in p.name
        ]
        # Files that trainers save beside a model.
        found = [p for p in found if p.name not in ("training_args.bin", "optimizer.pt")]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(p.name for p in found[:8])
            raise FormatError(
                f"{folder}: expected one checkpoint, found {len(found)} files {pattern} "
                f"({names}); give the path of one of them"
            )
    raise FormatError(
        f"{folder}: expected a folder with a checkpoint ({', '.join(_PATTERNS)}), found none; "
        "give the path of the file"
    )
