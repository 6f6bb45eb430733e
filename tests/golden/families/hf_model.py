"""What the config.json of most tiny models has."""

from __future__ import annotations

from typing import Any

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "tie_word_embeddings": False,
}


def model(model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        **SIZES,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **more,
    }
