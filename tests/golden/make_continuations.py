"""Makes continuations_MODEL.json: what llama.cpp goes on to say, greedily, and how sure it was.

    python tests/golden/make_continuations.py MODEL_DIR [MODEL ...]

The prompt goes through in batches of at most 512, then 48 tokens are generated one by one, past the
end-of-turn token where the model comes to one. For each the two likeliest tokens and their logits
are kept. A second engine may differ where the two are close, not where they are far apart. The
distance itself depends on how an engine rounds: llama.cpp's own settings move it by 0.2 logits
(root mean square), and by more than 1 at worst. The least of these distances is kept too, for
whoever looks into a difference; tests go by the first.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from llama_peer import LlamaPeer, Logits, PeerOptions, Tokens, describe
from prompts import CHAT_FORMATS, prompts_for

N_GENERATED = 48
N_BATCH = 512
OPTIONS = PeerOptions(n_ctx=2048, n_batch=N_BATCH, n_ubatch=N_BATCH, n_threads=1)
OTHER_SETTINGS = {
    "flash attention": replace(OPTIONS, flash_attention=True),
    "F32 cache": replace(OPTIONS, f32_cache=True),
    "no repacked weights": replace(OPTIONS, repack=False),
}


def read_prompt(peer: LlamaPeer, prompt: Tokens) -> Logits:
    """The logits after a prompt, one row."""
    peer.clear()
    for start in range(0, len(prompt), N_BATCH):
        logits = peer.decode(prompt[start : start + N_BATCH], start, first_output=-1)
    return logits


def continuation(peer: LlamaPeer, prompt: Tokens) -> dict[str, list[Any]]:
    """Greedy tokens, and at each step the runner-up and both logits."""
    logits = read_prompt(peer, prompt)
    tokens, seconds, first_logits, second_logits = [], [], [], []
    for position in range(len(prompt), len(prompt) + N_GENERATED):
        row = logits[0]
        first, second = top_two(row)
        tokens.append(first)
        seconds.append(second)
        first_logits.append(round(float(row[first]), 4))
        second_logits.append(round(float(row[second]), 4))
        logits = peer.decode(np.array([first], np.int32), position, first_output=0)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "token_logits": first_logits,
        "second_logits": second_logits,
    }


def top_two(row: Logits) -> tuple[int, int]:
    """The likeliest tokens; of equals, the lower id."""
    first = int(row.argmax())
    rest = row.copy()
    rest[first] = -np.inf
    return first, int(rest.argmax())


def forced_margins(peer: LlamaPeer, prompt: Tokens, tokens: list[int]) -> list[float]:
    """How far each of the tokens lies above the best other one, in its place; may be negative."""
    logits = read_prompt(peer, prompt)
    margins = []
    for i, token in enumerate(tokens):
        rest = logits[0].copy()
        rest[token] = -np.inf
        margins.append(float(logits[0][token] - rest.max()))
        logits = peer.decode(np.array([token], np.int32), len(prompt) + i, first_output=0)
    return margins


def make_records(path: Path) -> list[dict[str, Any]]:
    """One record for each prompt."""
    records = []
    with LlamaPeer(path, OPTIONS) as peer:
        for prompt in prompts_for(path.stem):
            ids = peer.tokenize(prompt.text, add_special=True, parse_special=prompt.special)
            answer = continuation(peer, ids)
            said = b"".join(peer.piece(token) for token in answer["tokens"])
            print(f"{path.stem} | {prompt.name} | {len(ids)} | {said.decode(errors='replace')!r}")
            margins = np.subtract(answer["token_logits"], answer["second_logits"])
            records.append(
                {
                    "name": prompt.name,
                    "text": prompt.text,
                    "special": prompt.special,
                    "ids": ids.tolist(),
                    **answer,
                    "least_margins": margins,
                }
            )
    for options in OTHER_SETTINGS.values():
        with LlamaPeer(path, options) as peer:
            for record in records:
                margins = forced_margins(peer, np.array(record["ids"], np.int32), record["tokens"])
                record["least_margins"] = np.minimum(record["least_margins"], margins)
    for record in records:
        record["least_margins"] = [round(float(margin), 4) for margin in record["least_margins"]]
    return records


def main() -> None:
    directory, names = Path(sys.argv[1]), sys.argv[2:] or list(CHAT_FORMATS)
    for name in names:
        path = directory / f"{name}.gguf"
        golden = {
            "command": f"python tests/golden/make_continuations.py MODEL_DIR {name}",
            "peer": describe(),
            "method": "prompt in batches of at most 512, then token by token; F16 KV, flash "
            "attention off, 1 thread, n_ctx 2048; least_margins also over: "
            + ", ".join(OTHER_SETTINGS),
            "model": name,
            "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in make_records(path))
        head = json.dumps(golden, indent=1)[:-2]
        target = Path(__file__).with_name(f"continuations_{name}.json")
        target.write_text(f'{head},\n "prompts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
