"""Makes exact.json: what the models' files mean before any engine rounds, to judge goldens by.

    python tests/golden/make_exact.py MODEL_DIR WIKI_TEST_RAW_XZ [MODEL ...]

Runs exact_model.py over the chunks of perplexity.json and over the continuations, in an environment
that holds pyflow (for its tokenizer) and gguf. Takes half an hour on two cores; models not named
keep their entries. `margins` holds, for each golden token, its logit less the best other token's:
negative where rounding led llama.cpp to another token than the file's numbers ask for.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from exact_model import ExactModel
from gguf import GGUFReader
from numpy.typing import NDArray

from pyflow.tokenizer import from_metadata

HERE = Path(__file__).parent
TARGET = HERE / "exact.json"
# Chunks that go through the layers together; a weight is unpacked once for all of them.
CHUNKS_AT_ONCE = 8


def margins(model: ExactModel, prompt: dict[str, Any]) -> list[float]:
    """How far each golden token lies above the best of the others."""
    ids = np.array([prompt["ids"] + prompt["tokens"][:-1]], np.int32)
    logits = model.logits(model.forward(ids)[0, len(prompt["ids"]) - 1 :])
    rows = np.arange(len(logits))
    chosen = logits[rows, prompt["tokens"]]
    logits[rows, prompt["tokens"]] = -np.inf
    return [round(float(margin), 4) for margin in chosen - logits.max(axis=1)]


def perplexities(model: ExactModel, chunks: NDArray[np.int32], bos: int | None) -> list[float]:
    """The cumulative estimate after each chunk (n_chunks, n_ctx), as in make_perplexity.py."""
    n_ctx = chunks.shape[1]
    inputs = chunks.copy()
    if bos is not None:
        inputs[:, 0] = bos
    scores: list[float] = []
    estimates = []
    for start in range(0, len(chunks), CHUNKS_AT_ONCE):
        part = slice(start, start + CHUNKS_AT_ONCE)
        for chunk, hidden in zip(chunks[part], model.forward(inputs[part]), strict=True):
            logits = model.logits(hidden[n_ctx // 2 : -1]).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            targets = chunk[n_ctx // 2 + 1 :]
            scores += np.log(np.exp(logits).sum(axis=1)).tolist()
            scores += (-logits[np.arange(len(targets)), targets]).tolist()
            n_scored = len(scores) // 2
            estimates.append(round(math.exp(math.fsum(scores) / n_scored), 6))
            print(f"[{len(estimates)}]{estimates[-1]:.4f}", end=",", flush=True)
    print()
    return estimates


def examine(path: Path, text: str) -> dict[str, Any]:
    """Perplexities and margins of one model."""
    model = ExactModel(path)
    fields = GGUFReader(path).fields
    metadata = {key: field.contents() for key, field in fields.items()}
    tokenizer = from_metadata(metadata, source=path.name)
    tokens = np.array(tokenizer.encode(text, add_special=True), np.int32)
    cases = [
        {
            "n_ctx": case["n_ctx"],
            "cumulative_ppl": perplexities(
                model,
                tokens[: len(case["cumulative_ppl"]) * case["n_ctx"]].reshape(-1, case["n_ctx"]),
                tokenizer.bos_id if tokenizer.add_bos else None,
            ),
        }
        for case in json.loads((HERE / "perplexity.json").read_text())["cases"]
        if case["model"] == path.stem
    ]
    golden = json.loads((HERE / f"continuations_{path.stem}.json").read_text())
    by_prompt = {prompt["name"]: margins(model, prompt) for prompt in golden["prompts"]}
    return {"perplexity": cases, "margins": by_prompt}


def main() -> None:
    directory, text_file = Path(sys.argv[1]), Path(sys.argv[2])
    text = lzma.decompress(text_file.read_bytes()).decode()
    results = json.loads(TARGET.read_text())["models"] if TARGET.exists() else {}
    for name in sys.argv[3:] or ["smollm2", "gemma3", "qwen2.5-coder-1.5b"]:
        results[name] = examine(directory / f"{name}.gguf", text)
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(results[key])}" for key in results)
        command = f"python tests/golden/make_exact.py MODEL_DIR {text_file.name}"
        TARGET.write_text(f'{{"command": "{command}",\n"models": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
