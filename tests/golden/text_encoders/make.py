"""Makes NAME.json: what transformers says of tiny encoders with random weights.

    python tests/golden/text_encoders/make.py [NAME ...]

In float32, through torch. The weights are those of tests/pyflow/specs/tiny.py, so a fixture holds
none. Needs transformers, torch and safetensors.
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
N_ROWS = 5
LEAST_CHANGE = 0.02
BERT: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 70,
}
WINDOWED = {
    **BERT,
    "max_position_embeddings": 400,
    "local_attention": 16,
    "num_hidden_layers": 4,
    "hidden_size": 72,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
T5 = {
    "model_type": "t5",
    "vocab_size": 90,
    "d_model": 48,
    "d_kv": 20,
    "d_ff": 72,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
}
# By name: the class of transformers, the configuration, and the number of tokens if it is not 60.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert": ("MaskedLM", {"model_type": "bert", **BERT}, 60),
    "bert_tanh_gelu": ("MaskedLM", {"model_type": "bert", **BERT, "hidden_act": "gelu_new"}, 60),
    "bert_classes": (
        "SequenceClassification",
        {"model_type": "bert", **BERT, "num_labels": 3},
        60,
    ),
    "roberta": ("MaskedLM", {"model_type": "roberta", **BERT, "type_vocab_size": 1}, 60),
    "xlm_roberta_classes": (
        "SequenceClassification",
        {"model_type": "xlm-roberta", **BERT, "type_vocab_size": 1, "num_labels": 1},
        60,
    ),
    "distilbert": (
        "MaskedLM",
        {
            "model_type": "distilbert",
            "vocab_size": 90,
            "dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 80,
            "max_position_embeddings": 64,
        },
        60,
    ),
    "distilbert_classes": (
        "SequenceClassification",
        {
            "model_type": "distilbert",
            "vocab_size": 90,
            "dim": 40,
            "n_layers": 1,
            "n_heads": 2,
            "hidden_dim": 60,
            "num_labels": 2,
        },
        20,
    ),
    "mpnet": (
        "MaskedLM",
        {
            "model_type": "mpnet",
            **BERT,
            "max_position_embeddings": 310,
            "layer_norm_eps": 1e-5,
        },
        300,
    ),
    "modernbert": ("MaskedLM", {"model_type": "modernbert", **WINDOWED}, 300),
    "modernbert_classes": (
        "SequenceClassification",
        {"model_type": "modernbert", **WINDOWED, "num_labels": 3, "classifier_pooling": "mean"},
        60,
    ),
    "camembert": ("MaskedLM", {"model_type": "camembert", **BERT, "type_vocab_size": 1}, 60),
    "gemma3": (
        "",
        {
            "model_type": "gemma3_text",
            "vocab_size": 90,
            "hidden_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 72,
            "max_position_embeddings": 100,
            "sliding_window": 16,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 16,
            "use_bidirectional_attention": True,
            "pad_token_id": 0,
        },
        60,
    ),
    "nomic_bert": ("MaskedLM", {"model_type": "nomic_bert", **BERT}, 60),
    "t5": ("TextEncoding", T5, 60),
    "mt5": ("TextEncoding", {**T5, "model_type": "mt5"}, 60),
    "umt5": ("TextEncoding", {**T5, "model_type": "umt5"}, 60),
    "t5_gated": (
        "TextEncoding",
        {**T5, "feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 128},
        280,
    ),
}


def make(name: str) -> dict[str, Any]:
    import torch
    import transformers
    from safetensors import safe_open

    kind, config, n_tokens = MODELS[name]
    auto = getattr(transformers, f"AutoModelFor{kind}" if kind else "AutoModel")
    random = np.random.default_rng(len(name))
    tokens = random.integers(5, config["vocab_size"], n_tokens).tolist()
    n_types = 1 if config.get("type_vocab_size") == 1 else 2
    has_types = config["model_type"] in ("bert", "nomic_bert")
    types = (np.arange(n_tokens) >= n_tokens // 3).astype(int) * (has_types and n_types > 1)
    fixture: dict[str, Any] = {
        "command": f"python tests/golden/text_encoders/make.py {name}",
        "seed": sum(name.encode()),
        "config": config,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        own = transformers.AutoConfig.for_model(**config)
        auto.from_config(own).save_pretrained(path / "saved")
        with safe_open(path / "saved/model.safetensors", "numpy") as file:
            fixture["tensors"] = {
                key: file.get_slice(key).get_shape() for key in sorted(file.keys())
            }
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
    extra = {"token_type_ids": torch.tensor([types.tolist()])} if has_types else {}

    # The base of a model for encoding is that of the decoder too.
    base = model if kind in ("TextEncoding", "") else model.base_model

    def run(ids: list[int], what: Any) -> Any:
        with torch.no_grad():
            return what(torch.tensor([ids]), **extra)

    states = run(tokens, base).last_hidden_state[0].numpy()
    other = run([tokens[0], *tokens[:0:-1]], base).last_hidden_state[0].numpy()
    change = np.abs(other[0] - states[0]).max() / np.abs(states).max()
    if change < LEAST_CHANGE:
        raise RuntimeError(f"the order of later tokens changes the first state by {change}")
    rows = np.linspace(0, n_tokens - 1, N_ROWS).astype(int).tolist()
    fixture |= {
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "tokens": tokens,
        "types": types.tolist(),
        "rows": rows,
        "states": [_numbers(states[row]) for row in rows],
    }
    if kind == "MaskedLM":
        logits = run(tokens, model).logits[0].numpy()
        fixture["fill"] = [_numbers(logits[row]) for row in rows[:2]]
    elif kind == "SequenceClassification":
        fixture["classes"] = _numbers(run(tokens, model).logits[0].numpy())
    return fixture


def _numbers(values: Any) -> list[float]:
    return [float(f"{x:.6g}") for x in values]


if __name__ == "__main__":
    tiny.write_fixtures(TARGET, sys.argv[1:] or MODELS, make)
