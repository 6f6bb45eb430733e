"""Makes gguf_keys.json: the keys of GGUF that llama.cpp and the gguf library have for models.

    python tests/golden/make_gguf_keys.py LLAMA_CPP/src/llama-arch.cpp

The source is that of llama-cpp-python 0.3.36 (`pip download --no-deps --no-binary :all:`). A key is
written without the architecture before it.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

TARGET = Path(__file__).with_name("gguf_keys.json")
_OF_AN_ARCHITECTURE = re.compile(r'"%s\.([\w.]+)"')


def library_keys() -> set[str]:
    import gguf

    groups = (group for group in vars(gguf.Keys).values() if isinstance(group, type))
    names = (name for group in groups for name in vars(group).values() if isinstance(name, str))
    return {n.removeprefix("{arch}.") for n in names if n.startswith("{arch}.")}


def main(source: Path) -> None:
    keys = set(_OF_AN_ARCHITECTURE.findall(source.read_text())) | library_keys()
    found = {
        "command": f"python tests/golden/make_gguf_keys.py {source.name}",
        "peer": f"llama.cpp (llama-cpp-python 0.3.36), gguf {version('gguf')}",
        "keys": sorted(keys - {"{dense}_feat_in", "{dense}_feat_out"}),
    }
    TARGET.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
