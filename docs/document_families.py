"""Write docs/families.md from the tiny models that tests hold to other programs."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
TARGET = Path(__file__).with_name("families.md")
HEAD = """\
# Families, and what they were held to

Written by `python docs/document_families.py`, not by hand. For each family tiny models with
random weights, float32, get 40 random tokens. The largest difference of a logit to the other
program's, in parts of its largest one, is in the table: the worst of all models of the family, of
prompts and of decoding. pyflow keeps keys and values in F16 here, which is most of it; 2.0e-3 is
what `tests/pyflow/specs/test_families.py` allows. `-` means that there is no such file, or no
oracle for it.

| family | models | folder, transformers | GGUF, llama.cpp |
|---|---|---|---|
"""


def rows() -> list[str]:
    sys.path.insert(0, str(ROOT))
    from pyflow import formats
    from pyflow.specs import build_spec
    from tests.pyflow.specs import tiny
    from tests.pyflow.specs.test_families import NAMES, REFUSED, SPECS, fixture, logits

    worst: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    models: dict[str, set[str]] = defaultdict(set)
    for name in NAMES:
        kind, _, model = name.partition("_")
        if name in REFUSED:
            continue
        golden = fixture(name)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = formats.open(tiny.write(Path(folder), golden))
            if kind == "own":
                shutil.copy(SPECS / f"{model}.toml", Path(folder) / "pyflow.toml")
            family = build_spec(checkpoint).architecture
            want = np.array(golden["logits"])
            for regime in ("prefill", "decode"):
                got = logits(checkpoint, golden["tokens"], golden.get("n_ctx", 64), regime)
                difference = np.abs(got[golden["rows"]] - want).max() / np.abs(want).max()
                worst[family][kind] = max(worst[family][kind], float(difference))
        models[family].add(model)
    found = []
    for family in sorted(models):
        parts = [
            f"{worst[family][kind]:.1e}" if kind in worst[family] else "-"
            for kind in ("hf", "gguf")
        ]
        found.append(f"| {family} | {', '.join(sorted(models[family]))} | {' | '.join(parts)} |")
    return found


if __name__ == "__main__":
    TARGET.write_text(HEAD + "\n".join(rows()) + "\n")
