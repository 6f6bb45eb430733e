"""Write the corpus as files, which fuzzing starts from: one folder per parser.

python tests/hostile/write_seeds.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf_cases
import index_cases
import llama2c_cases
import safetensors_cases
import torch_cases

FIXTURES = Path(__file__).parents[1] / "formats/fixtures"
# Longer files only make fuzzing slow.
MAX_BYTES = 16384


def main() -> None:
    fixtures = {p.name: p.read_bytes() for p in FIXTURES.iterdir() if p.suffix not in {".npz"}}
    kinds = {
        "gguf": (gguf_cases, ()),
        "safetensors": (safetensors_cases, (".safetensors",)),
        "torch": (torch_cases, (".pt", ".pth", ".bin")),
        "llama2c": (llama2c_cases, ()),
    }
    seeds = {
        kind: {
            **module.VALID,
            **{case.name: case.data for case in module.CASES},
            **{name: data for name, data in fixtures.items() if name.endswith(suffixes)},
        }
        for kind, (module, suffixes) in kinds.items()
    }
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
