"""Makes NAME.json: what transformers says of tiny encoder-decoders, with random weights or trained.

    python tests/golden/encoder_decoders/make.py [NAME ...]

In float32, through torch, but for keys and values that the decoder sees, which are rounded to F16
as in pyflow's caches. Random weights are those of tests/pyflow/specs/tiny.py, so a fixture holds
none. Trained ones sort the numbers of the source, and add one to each, or now and then two.
Written down are logits after some tokens of a text, and what greedy search and beams give. Needs
transformers, torch and safetensors.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "pyflow/specs"))
import tiny

TARGET = Path(__file__).parent
N_ROWS, N_WRITTEN = 4, 24
LEAST_CHANGE = 0.02
EOS = 1
# Searches, in the words of transformers.
BEAMS: list[dict[str, Any]] = [
    {"num_beams": 2},
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"},
    {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "num_return_sequences": 2},
    {"num_beams": 5, "no_repeat_ngram_size": 2, "length_penalty": 0.6},
    {"num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": EOS, "min_new_tokens": 12},
]
T5: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 90,
    "d_model": 48,
    "d_kv": 20,
    "d_ff": 72,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
BART: dict[str, Any] = {
    "model_type": "bart",
    "vocab_size": 90,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 72,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 100,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}
# By name: the configuration, more tensors, and the numbers of tokens of source and text.
MODELS: dict[str, tuple[dict[str, Any], dict[str, list[int]], tuple[int, int]]] = {
    "t5": (T5, {}, (60, 40)),
    "t5_untied": (
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"lm_head.weight": [90, 48]},
        (150, 90),
    ),
    "mt5": ({**T5, "model_type": "mt5"}, {"lm_head.weight": [90, 48]}, (30, 30)),
    "bart": (BART, {}, (60, 40)),
    "mbart": ({**BART, "model_type": "mbart", "scale_embedding": True}, {}, (60, 40)),
    "marian": (
        {**BART, "model_type": "marian", "scale_embedding": True, "activation_function": "swish"},
        {},
        (60, 40),
    ),
    "m2m_100": (
        {**BART, "model_type": "m2m_100", "scale_embedding": True, "activation_function": "relu"},
        {},
        (60, 40),
    ),
    "umt5": ({**T5, "model_type": "umt5", "num_layers": 3}, {}, (30, 30)),
    "t5_trained": (
        {**T5, "vocab_size": 40, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2},
        {},
        (12, 12),
    ),
    "marian_trained": (
        {
            **BART,
            "model_type": "marian",
            "vocab_size": 40,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_attention_heads": 4,
            "scale_embedding": True,
            "activation_function": "swish",
        },
        {},
        (12, 12),
    ),
}
N_STEPS, N_EXAMPLES, RARE, RATE = 1200, 64, 0.3, 2e-3


def make(name: str) -> dict[str, Any]:
    import torch
    import transformers
    from safetensors import safe_open

    config, more, (n_source, n_tokens) = MODELS[name]
    auto = transformers.AutoModelForSeq2SeqLM
    source, tokens = texts(name, config, n_source, n_tokens)
    fixture: dict[str, Any] = {
        "command": f"python tests/golden/encoder_decoders/make.py {name}",
        "seed": sum(name.encode()),
        "config": config,
        # T5 begins with such queries, as its scores have no scale.
        "gains": {"ention.q.": config.get("d_kv", 1) ** -0.5},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        own = transformers.AutoConfig.for_model(**config)
        torch.manual_seed(1)
        made = auto.from_config(own)
        if name.endswith("_trained"):
            train(made)
        made.save_pretrained(path / "saved")
        with safe_open(path / "saved/model.safetensors", "numpy") as file:
            names = sorted(file.keys())
            shapes = {key: file.get_slice(key).get_shape() for key in names}
            if name.endswith("_trained"):
                fixture["trained"] = {key: tiny.kept(file.get_tensor(key)) for key in names}
        fixture["tensors"] = shapes | more
        tiny.write_folder(path / "tiny", fixture)
        model, report = auto.from_pretrained(
            path / "tiny",
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        if any(report.values()):
            raise RuntimeError(f"{name}: {report}")
    model.eval()
    round_cells(model)

    def logits(given: list[int]) -> Any:
        with torch.no_grad():
            found = model(input_ids=torch.tensor([given]), decoder_input_ids=torch.tensor([tokens]))
        return found.logits[0].numpy()

    expected = logits(source)
    # Trained models sort: another order is the same to them.
    other = source[: n_source // 2] if "trained" in fixture else source[::-1]
    change = np.abs(logits(other) - expected).max() / np.abs(expected).max()
    if change < LEAST_CHANGE:
        raise RuntimeError(f"{name}: another source changes logits by {change}")
    written = model.generate(
        torch.tensor([source]), max_new_tokens=N_WRITTEN, do_sample=False, num_beams=1
    )
    rows = np.linspace(0, n_tokens - 1, N_ROWS).astype(int).tolist()
    found = [searched(model, source, options) for options in BEAMS]
    return fixture | {
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "source": source,
        "tokens": tokens,
        "rows": rows,
        "logits": [[float(f"{x:.6g}") for x in expected[row]] for row in rows],
        "written": written[0, 1:].tolist(),
        "beams": found,
    }


def texts(
    name: str, config: dict[str, Any], n_source: int, n_tokens: int
) -> tuple[list[int], list[int]]:
    """A source, and tokens of the decoder."""
    random = np.random.default_rng(len(name))
    source = random.integers(5, config["vocab_size"], n_source).tolist()
    if name.endswith("_trained"):  # on numbers that differ
        source = random.permutation(range(5, config["vocab_size"] - 2))[:n_source].tolist()
    tokens = random.integers(5, config["vocab_size"], n_tokens - 1).tolist()
    return source, [config["decoder_start_token_id"], *tokens]


def train(model: Any) -> None:
    """Teaches a model to sort its source and to add one to each token, or two for RARE of them."""
    import torch

    config = model.config
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=N_STEPS)
    model.train()
    for step in range(N_STEPS):
        n = 4 + step % 9
        numbers = torch.rand(N_EXAMPLES, config.vocab_size - 7).argsort(1)[:, :n]
        source = 5 + numbers
        text = source.sort(1).values + 1 + (torch.rand(source.shape) < RARE)
        labels = torch.cat([text, torch.full((N_EXAMPLES, 1), config.eos_token_id)], 1)
        loss = model(input_ids=source, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}", file=sys.stderr)


def round_cells(model: Any) -> None:
    """Rounds keys and values of the decoder to F16, as caches of pyflow hold them."""
    for name, module in model.named_modules():
        if ".decoder." in f".{name}" and name.rsplit(".")[-1] in ("k", "v", "k_proj", "v_proj"):
            module.register_forward_hook(lambda _module, _inputs, out: out.half().float())


def searched(model: Any, source: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """What beam search gives, without start tokens and padding."""
    import torch

    given = torch.tensor([source])
    length = {"max_new_tokens": N_WRITTEN, "do_sample": False}
    found = model.generate(
        given, **length, **options, return_dict_in_generate=True, output_scores=True
    )
    texts = [row[1:].tolist() for row in found.sequences]
    return {
        "options": options,
        "texts": [text[: text.index(EOS) + 1] if EOS in text else text for text in texts],
        "scores": [float(f"{x:.6g}") for x in found.sequences_scores],
    }


if __name__ == "__main__":
    tiny.write_fixtures(TARGET, sys.argv[1:] or MODELS, make)
