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

_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
_DORA = {
    "r": 4,
    "lora_alpha": 6,
    "use_dora": True,
    "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"],
}
_PLAIN = {"r": 3, "lora_alpha": 5, "target_modules": [*_ATTENTION, "down_proj"]}
_LATENT = {
    "r": 3,
    "lora_alpha": 5,
    "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
}

# The family, and what LoraConfig gets; of several adapters, one after the other.
ADAPTERS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "llama": (
        "hf_llama3",
        [
            {
                "r": 4,
                "lora_alpha": 6,
                "use_rslora": True,
                "target_modules": [*_ATTENTION, "gate_proj", "down_proj"],
                "rank_pattern": {"layers.0.self_attn.q_proj": 7, "down_proj": 2},
                "alpha_pattern": {"v_proj|k_proj": 3, "layers.1.mlp.down_proj": 9},
            }
        ],
    ),
    "fused": (
        "hf_phi3",
        [{"r": 5, "lora_alpha": 5, "target_modules": ["qkv_proj", "gate_up_proj", "lm_head"]}],
    ),
    "transposed": (
        "hf_gpt2",
        [{"r": 3, "lora_alpha": 9, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}],
    ),
    "dora": ("hf_qwen2", [_DORA]),
    "dora_fused": (
        "hf_phi3",
        [{"r": 5, "lora_alpha": 5, "target_modules": ["qkv_proj", "down_proj"], "use_dora": True}],
    ),
    "dora_transposed": (
        "hf_gpt2",
        [
            {
                "r": 3,
                "lora_alpha": 9,
                "target_modules": ["c_attn", "c_fc", "wte"],
                "fan_in_fan_out": True,
                "use_dora": True,
            }
        ],
    ),
    "several": ("hf_llama3", [_PLAIN, _DORA, _DORA | {"r": 2}, _PLAIN | {"r": 1}]),
    "embedding": (
        "hf_mistral",
        [{"r": 4, "lora_alpha": 6, "target_modules": ["embed_tokens", "lm_head", "q_proj"]}],
    ),
    "embedding_scaled": (
        "hf_gemma3",
        [{"r": 4, "lora_alpha": 6, "target_modules": ["embed_tokens", "o_proj"]}],
    ),
    "embedding_dora": (
        "hf_gemma3",
        [{"r": 4, "lora_alpha": 6, "target_modules": ["embed_tokens"], "use_dora": True}],
    ),
    "gpt_oss": (
        "hf_gpt_oss",
        [{"r": 2, "lora_alpha": 3, "target_modules": _ATTENTION, "target_parameters": _EXPERTS}],
    ),
    "llama4_experts": (
        "hf_llama4",
        [
            {
                "r": 3,
                "lora_alpha": 4,
                "target_modules": ["q_proj", "shared_expert.up_proj", "shared_expert.down_proj"],
                "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
            }
        ],
    ),
    "qwen3moe": (
        "hf_qwen3moe",
        [
            {
                "r": 2,
                "lora_alpha": 3,
                "target_modules": [],
                "target_parameters": [*_EXPERTS, "mlp.gate.weight"],
                "rank_pattern": {r".*\.gate_up_proj": 4},
                "alpha_pattern": {r".*\.gate_up_proj": 6},
            }
        ],
    ),
    "gemma4_moe": (
        "hf_gemma4_moe",
        [
            {
                "r": 2,
                "lora_alpha": 3,
                "target_modules": ["o_proj"],
                "target_parameters": ["experts.down_proj"],
            }
        ],
    ),
    "deepseek2": ("hf_deepseek2", [_LATENT]),
    "deepseek3": ("hf_deepseek3", [_LATENT | {"use_dora": True}, _LATENT]),
}
FACTORS = (1.0, 0.5, -2.0, 3.0)


def make(name: str) -> dict[str, Any]:
    import peft
    import torch
    import transformers

    family, configs = ADAPTERS[name]
    given = json.loads((TARGET.parent / f"families/{family}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        tiny.write_folder(path / "base", given)
        adapters = []
        for i, config in enumerate(configs):
            saved = written(path / f"saved{i}", load(path / "base"), config)
            adapters.append(saved | {"seed": sum(name.encode()) + i})
            tiny_adapters.write(path / str(i), adapters[-1])
        base = load(path / "base")
        round_cells(base)
        model = peft.PeftModel.from_pretrained(base, path / "0", "0").eval()
        for i in range(1, len(configs)):
            model.load_adapter(path / str(i), str(i))
        model.base_model.set_adapter([str(i) for i in range(len(configs))])
        for module in model.modules():
            for i in range(len(configs)):
                if isinstance(module, peft.tuners.lora.LoraLayer) and i:
                    module.set_scale(str(i), FACTORS[i])
        with torch.no_grad():
            found = model(torch.tensor([given["tokens"]])).logits[0].numpy()
    rows = [[float(f"{x:.6g}") for x in found[row]] for row in given["rows"]]
    about = {
        "command": f"python tests/golden/adapters/make.py {name}",
        "peer": f"peft {peft.__version__}, transformers {transformers.__version__}",
        "family": family,
    }
    more = {"others": adapters[1:], "factors": FACTORS[: len(configs)]} if configs[1:] else {}
    return about | adapters[0] | more | {"logits": rows}


def load(path: Path) -> Any:
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )


def written(path: Path, base: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration that PEFT writes, and the shapes of its tensors."""
    import peft
    from safetensors.torch import load_file

    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    adapted.save_pretrained(path, save_embedding_layers=False)
    shapes = {
        key: list(value.shape)
        for key, value in sorted(load_file(path / "adapter_model.safetensors").items())
    }
    saved = json.loads((path / "adapter_config.json").read_text())
    return {"config": saved | {"base_model_name_or_path": None}, "tensors": shapes}


def round_cells(model: Any) -> None:
    """Rounds keys and values where the model's attention gets them; of latent attention, latents
    and what turns of keys."""
    home = sys.modules[type(model).__module__]
    attend = home.eager_attention_forward
    latents = [m for name, m in model.named_modules() if name.endswith("kv_a_layernorm")]
    for norm in latents:
        norm.register_forward_hook(lambda _module, _given, found: found.half().float())

    def rounded(module: Any, q: Any, k: Any, v: Any, *more: Any, **how: Any) -> Any:
        if latents:
            k[..., module.qk_nope_head_dim :] = k[..., module.qk_nope_head_dim :].half().float()
            return attend(module, q, k, v, *more, **how)
        return attend(module, q, k.half().float(), v.half().float(), *more, **how)

    home.eager_attention_forward = rounded


if __name__ == "__main__":
    tiny.write_fixtures(TARGET, sys.argv[1:] or ADAPTERS, make)
