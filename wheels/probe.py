"""What an installed pyflow answers, as one JSON object; check.py runs it in every environment.

usage: python probe.py MODEL GOLDEN TEXT N_PROMPTS
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pyflow.quant.measure.perplexity import perplexity

import pyflow
from pyflow import _core

SURE = 0.5  # logits between llama.cpp's token and every other, as in tests/
N_CTX = 128


def answers(model: pyflow.Model, prompts: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """What must be the same everywhere: all of the decode regime."""
    greedy = pyflow.SamplingParams(temperature=0)
    written = model.generate("The capital of France is", n_predict=16, sampling=greedy)
    scored = perplexity(model, text, n_ctx=N_CTX, n_chunks=1, regime="decode")
    digest, wrong = hashlib.sha256(), 0
    for prompt in prompts:
        ids, tokens = np.array(prompt["ids"]), np.array(prompt["tokens"])
        with model.context(n_ctx=len(ids) + len(tokens)) as context:
            head = context.forward(ids)
            tail = context.forward(tokens[:-1], logits="all")
        logits = np.concatenate([head, tail])
        digest.update(logits.tobytes())
        sure = np.subtract(prompt["token_logits"], prompt["second_logits"]) > SURE
        wrong += int(np.count_nonzero((logits.argmax(axis=1) != tokens) & sure))
    return {
        "text": written.text,
        "perplexity": scored.ppl.hex(),
        "logits": digest.hexdigest(),
        "golden tokens missed": wrong,
    }


def main() -> None:
    model, golden, text, n_prompts = sys.argv[1:]
    prompts = json.loads(Path(golden).read_text())["prompts"][: int(n_prompts)]
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "kernels": _core.cpu_info()["isa"],
    }
    for n_threads in (1, 2):
        with pyflow.load(model, n_threads=n_threads) as loaded:
            found[f"answers -t {n_threads}"] = answers(loaded, prompts, Path(text).read_text())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
