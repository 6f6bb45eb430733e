"""Makes minilm.json and mpnet.json: vectors of some texts by transformers and torch.

    python tests/golden/text_encoders/real/make.py minilm FOLDER

The mean of the last hidden states in float64, of length one, as sentence-transformers has it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TEXTS = [
    "hello",
    "The quick brown fox jumps over the lazy dog.",
    "Ein kurzer Satz, naïve café, 日本語 and 👍.",
    "Rivers carry water from mountains to the sea, and towns grow on their banks. " * 12,
]


def main() -> None:
    import torch
    import transformers

    name, folder = sys.argv[1:]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    vectors = []
    for text in TEXTS:
        encoded = tokenizer(text, truncation=False, padding=False, return_tensors="pt")
        with torch.no_grad():
            mean = model(**encoded).last_hidden_state[0].double().mean(0)
        vectors.append([float(f"{x:.7g}") for x in mean / mean.norm()])
    golden = {
        "command": f"python tests/golden/text_encoders/real/make.py {name} FOLDER",
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "texts": TEXTS,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    rows = ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in vectors)
    target = Path(__file__).with_name(f"{name}.json")
    target.write_text("{\n" + ",\n".join(lines) + f',\n "vectors": [\n{rows}\n ]\n}}\n')


if __name__ == "__main__":
    main()
