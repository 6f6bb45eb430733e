"""Makes perplexity.json: llama.cpp's own perplexity, by its own method, on this CPU.

    python tests/golden/make_perplexity.py MODEL_DIR WIKI_TEST_RAW_XZ

The method is llama-perplexity's: n_ctx 512, tokenize once with special tokens, independent chunks,
BOS replaces the first token of a chunk where the model adds BOS, and of each chunk the predictions
of positions 256..510 count (255 of them). It is written out here a second time on purpose: what
the tests compare against must not share code with what they test.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from llama_peer import LlamaPeer, PeerOptions, Tokens, describe

N_CTX = 512
CHUNKS = {"smollm2": 24, "gemma3": 24, "qwen2.5-coder-1.5b": 8}


def cumulative_perplexity(peer: LlamaPeer, tokens: Tokens, n_chunks: int) -> list[float]:
    """The estimate after each chunk, as llama-perplexity prints it."""
    first = N_CTX // 2
    nll, count, estimates = 0.0, 0, []
    for chunk in range(n_chunks):
        targets = tokens[chunk * N_CTX : (chunk + 1) * N_CTX]
        inputs = targets.copy()
        if peer.bos is not None:
            inputs[0] = peer.bos
        peer.clear()
        logits = peer.decode(inputs, 0, first_output=first)
        for row, target in zip(logits[:-1], targets[first + 1 :], strict=True):
            shifted = row - row.max()
            nll += math.log(np.exp(shifted).sum(dtype=np.float64)) - float(shifted[target])
            count += 1
        estimates.append(math.exp(nll / count))
        print(f"[{chunk + 1}]{estimates[-1]:.4f}", end=",", flush=True)
    print()
    return estimates


def main() -> None:
    models, text_file = Path(sys.argv[1]), Path(sys.argv[2])
    text = lzma.decompress(text_file.read_bytes()).decode()
    options = PeerOptions(n_ctx=N_CTX, n_batch=N_CTX, n_ubatch=N_CTX, n_threads=1)
    results = {}
    for name, n_chunks in CHUNKS.items():
        with LlamaPeer(models / f"{name}.gguf", options) as peer:
            tokens = peer.tokenize(text, add_special=True)
            estimates = cumulative_perplexity(peer, tokens, n_chunks)
        results[name] = {
            "n_tokens": len(tokens),
            "cumulative_ppl": [round(value, 6) for value in estimates],
        }
    golden = {
        "command": f"python tests/golden/make_perplexity.py MODEL_DIR {text_file.name}",
        "peer": describe(),
        "method": "n_ctx 512, one 512-token batch a chunk, scored positions 256..510, F16 KV, "
        "flash attention off, 1 thread",
        "models": results,
    }
    target = Path(__file__).with_name("perplexity.json")
    target.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
