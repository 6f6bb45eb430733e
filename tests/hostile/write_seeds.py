"""Write the corpus as files, which fuzzing starts from: one folder per parser.

python tests/hostile/write_seeds.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import ctranslate2_cases
import gguf_cases
import index_cases
import llama2c_cases
import marian_cases
import npz_cases
import safetensors_cases
import torch_cases
from gguf_builder import I32, U16, Gguf, Tensor, number

FIXTURES = Path(__file__).parents[1] / "formats/fixtures"
# Longer files only make fuzzing slow.
MAX_BYTES = 16384


def split_seeds() -> Iterator[tuple[str, bytes]]:
    """Two parts of a split file: the size of the first one, then both."""

    def part(no: int, name: str, n_tensors: int = 2) -> bytes:
        entries = [
            ("split.no", number(U16, no)),
            ("split.count", number(U16, 2)),
            ("split.tensors.count", number(I32, n_tensors)),
        ]
        return Gguf(entries, [Tensor(name)], data=bytes(16)).build()

    for name, first, second in [
        ("both", part(0, "a"), part(1, "b")),
        ("twins", part(0, "a"), part(1, "a")),
        ("swapped", part(1, "a"), part(0, "b")),
        ("more_tensors", part(0, "a", 3), part(1, "b", 3)),
        ("disagreeing", part(0, "a"), part(1, "b", 3)),
        ("whole", gguf_cases.VALID["version_3"], b""),
        ("second_is_whole", part(0, "a"), gguf_cases.VALID["version_3"]),
    ]:
        yield name, len(first).to_bytes(2, "little") + first + second


def main() -> None:
    fixtures = {p.name: p.read_bytes() for p in FIXTURES.iterdir() if p.suffix not in {".npz"}}
    kinds = {
        "gguf": (gguf_cases, ()),
        "safetensors": (safetensors_cases, (".safetensors",)),
        "torch": (torch_cases, (".pt", ".pth", ".bin")),
        "llama2c": (llama2c_cases, ()),
        "ctranslate2": (ctranslate2_cases, ()),
        "marian": (marian_cases, ()),
        "npz": (npz_cases, ()),
    }
    seeds = {
        kind: {
            **module.VALID,
            **{case.name: case.data for case in module.CASES},
            **{name: data for name, data in fixtures.items() if name.endswith(suffixes)},
        }
        for kind, (module, suffixes) in kinds.items()
    }
    seeds["split"] = dict(split_seeds())
    seeds["index"] = {case.name: case.data for case in index_cases.CASES}
    seeds["index"]["valid"] = json.dumps({"weight_map": {"a": "a"}}).encode()
    for kind, files in seeds.items():
        folder = Path(sys.argv[1]) / kind
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            if len(data) <= MAX_BYTES:
                (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
