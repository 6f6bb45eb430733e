"""Which file of a folder is its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from pyflow.errors import FormatError

# As hubs lay models out; the first pattern that matches wins. Where there are safetensors beside
# PyTorch files, they hold the same weights.
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
    """The checkpoint in a folder; FormatError when there is none, or more than one."""
    for pattern in _PATTERNS:
        found = sorted(p for p in folder.glob(pattern) if p.is_file())
        # Of a split model the first part stands for all.
        found = [
            p
            for p in found
            if re.search(r"-\d{5}-of-\d{5}\.gguf$", p.name) is None or "-00001-of-" in p.name
        ]
        # What trainers save beside a model.
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
