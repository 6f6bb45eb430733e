"""Makes perplexity.json: llama.cpp's own perplexity, by its own method, on this CPU.

    python tests/golden/make_perplexity.py MODEL_DIR WIKI_TEST_RAW_XZ

The method is llama-perplexity's with its defaults: tokenize once with special tokens, independent
chunks of n_ctx tokens, BOS replaces the first token of a chunk where the model adds BOS, and of
each chunk the predictions of positions n_ctx/2 .. n_ctx-2 count (255 of 512). It is written out
here a second time on purpose: the oracle must not share code with what it judges.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from llama_peer import LlamaPeer, Logits, PeerOptions, Tokens, describe

N_BATCH = 512
# Model, n_ctx, chunks. The last runs gemma3 past its window of 512 tokens.
CASES = [
    ("smollm2", 512, 24),
    ("gemma3", 512, 24),
    ("qwen2.5-coder-1.5b", 512, 8),
    ("gemma3", 2048, 4),
]
# The same by another build (AVX512 and AMX) on another CPU: how far rounding alone may lead.
ELSEWHERE = {("smollm2", 512): 26.380, ("gemma3", 512): 17.080, ("qwen2.5-coder-1.5b", 512): 15.175}


def negative_log_likelihoods(logits: Logits, targets: Tokens) -> list[float]:
    """-log p of each row's target."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, dtype=np.float64)
    return (np.log(sums) - shifted[np.arange(len(targets)), targets]).tolist()


def cumulative_perplexity(peer: LlamaPeer, tokens: Tokens, n_chunks: int) -> list[float]:
    """The estimate after each chunk, as llama-perplexity prints it."""
    n_ctx = peer.options.n_ctx
    scores: list[float] = []
    estimates = []
    for chunk in tokens[: n_chunks * n_ctx].reshape(n_chunks, n_ctx):
        inputs = chunk.copy()
        if peer.bos is not None:
            inputs[0] = peer.bos
        peer.clear()
        for start in range(0, n_ctx, N_BATCH):
            first = max(n_ctx // 2, start)
            part = inputs[start : start + N_BATCH]
            logits = peer.decode(part, start, first_output=first - start)
            targets = chunk[first + 1 : start + N_BATCH + 1]
            if len(targets):
                scores += negative_log_likelihoods(logits[: len(targets)], targets)
        estimates.append(math.exp(math.fsum(scores) / len(scores)))
        print(f"[{len(estimates)}]{estimates[-1]:.4f}", end=",", flush=True)
    print()
    return estimates


def main() -> None:
    models, text_file = Path(sys.argv[1]), Path(sys.argv[2])
    text = lzma.decompress(text_file.read_bytes()).decode()
    results = []
    for name, n_ctx, n_chunks in CASES:
        options = PeerOptions(
            n_ctx=n_ctx, n_batch=N_BATCH, n_ubatch=N_BATCH, n_threads=1, flash_attention=True
        )
        with LlamaPeer(models / f"{name}.gguf", options) as peer:
            tokens = peer.tokenize(text, add_special=True)
            estimates = cumulative_perplexity(peer, tokens, n_chunks)
        results.append(
            {
                "model": name,
                "n_ctx": n_ctx,
                "n_tokens": len(tokens),
                "cumulative_ppl": [round(value, 6) for value in estimates],
                "elsewhere_ppl": ELSEWHERE.get((name, n_ctx)),
            }
        )
    golden = {
        "command": f"python tests/golden/make_perplexity.py MODEL_DIR {text_file.name}",
        "peer": describe(),
        "method": "batches of 512, second half of each chunk scored, F16 KV, flash attention on "
        "(llama-perplexity's choice on a CPU), 1 thread",
        "cases": results,
    }
    target = Path(__file__).with_name("perplexity.json")
    target.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
