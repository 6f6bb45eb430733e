"""Makes NAME.json: what PEFT says of tiny models with adapters of random weights.

    python tests/golden/adapters/make.py [NAME ...]

The models are those of ../families; adapters have their weights from a seed too
(tests/pyflow/adapters/tiny_adapters.py). In float32, but for keys and values, which are rounded to
F16 as in pyflow's caches. Needs peft, transformers, torch and safetensors.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "pyflow/specs"))
sys.path.append(str(Path(__file__).parents[2] / "pyflow/adapters"))
import tiny
import tiny_adapters

TARGET = Path(__file__).parent

# The family, and what LoraConfig gets.
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "hf_llama3",
        {
            "r": 4,
            "lora_alpha": 6,
            "use_rslora": True,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
            "rank_pattern": {"layers.0.self_attn.q_proj": 7, "down_proj": 2},
            "alpha_pattern": {"v_proj|k_proj": 3, "layers.1.mlp.down_proj": 9},
        },
    ),
    "fused": (
        "hf_phi3",
        {"r": 5, "lora_alpha": 5, "target_modules": ["qkv_proj", "gate_up_proj", "lm_head"]},
    ),
    "transposed": (
        "hf_gpt2",
        {"r": 3, "lora_alpha": 9, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    ),
}


def make(name: str) -> dict[str, Any]:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file

    family, config = ADAPTERS[name]
    given = json.loads((TARGET.parent / f"families/{family}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        tiny.write_folder(path / "base", given)
        base = transformers.AutoModelForCausalLM.from_pretrained(
            path / "base", dtype=torch.float32, attn_implementation="eager"
        )
        lora = peft.LoraConfig(task_type="CAUSAL_LM", **config)
        adapted = peft.get_peft_model(base, lora)
        adapted.save_pretrained(path / "saved", save_embedding_layers=False)
        shapes = {
            key: list(value.shape)
            for key, value in sorted(load_file(path / "saved/adapter_model.safetensors").items())
        }
        saved = json.loads((path / "saved/adapter_config.json").read_text())
        fixture = {
            "command": f"python tests/golden/adapters/make.py {name}",
            "peer": f"peft {peft.__version__}, transformers {transformers.__version__}",
            "family": family,
            "seed": sum(name.encode()),
            "config": saved | {"base_model_name_or_path": None},
            "tensors": shapes,
        }
        tiny_adapters.write(path / "adapter", fixture)
        base = transformers.AutoModelForCausalLM.from_pretrained(
            path / "base", dtype=torch.float32, attn_implementation="eager"
        )
        round_cells(base)
        model = peft.PeftModel.from_pretrained(base, path / "adapter").eval()
        with torch.no_grad():
            found = model(torch.tensor([given["tokens"]])).logits[0].numpy()
    rows = [[float(f"{x:.6g}") for x in found[row]] for row in given["rows"]]
    return fixture | {"logits": rows}


def round_cells(model: Any) -> None:
    """Rounds keys and values where the model's attention gets them."""
    home = sys.modules[type(model).__module__]
    attend = home.eager_attention_forward

    def rounded(module: Any, q: Any, k: Any, v: Any, *more: Any, **how: Any) -> Any:
        return attend(module, q, k.half().float(), v.half().float(), *more, **how)

    home.eager_attention_forward = rounded


if __name__ == "__main__":
    tiny.write_fixtures(TARGET, sys.argv[1:] or ADAPTERS, make)
