"""Makes golden.json: what transformers says of tiny models whose weights others have quantized.

    python tests/golden/quantized/make.py

The model is that of tests/golden/families/hf_llama2.json. Its matrices are packed by
tests/formats/quantized and unpacked in float64; transformers gets the values in float32. The
environment holds transformers, torch and safetensors.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "pyflow/specs"))
import quantized_folders
import tiny

HERE = Path(__file__).parent


def main() -> None:
    import safetensors.numpy
    import torch
    import transformers

    golden = json.loads((HERE.parent / "families/hf_llama2.json").read_text())
    found = {}
    for case in quantized_folders.CASES:
        _, values, _ = quantized_folders.quantized(case, dict(tiny.weights(golden)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            (path / "config.json").write_text(json.dumps(golden["config"]))
            safetensors.numpy.save_file(values, path / "model.safetensors", {"format": "pt"})
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager"
            )
        with torch.no_grad():
            logits = model(torch.tensor([golden["tokens"]])).logits[0].numpy()
        found[case] = np.round(logits[golden["rows"]].astype(np.float64), 5).tolist()
    lines = [f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items()]
    (HERE / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
