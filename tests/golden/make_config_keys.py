"""Makes config_keys.json: the keys that transformers reads of each family's config.json.

    python tests/golden/make_config_keys.py

Of each model_type: the fields of its class with their defaults. With null: what else the class, the
model and its cache ask the configuration for; a tiny model runs to see that. The environment holds
transformers and torch.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import warnings
from pathlib import Path
from typing import Any

if __package__:
    from . import hf_families
    from .encoder_decoders import make as encoder_decoders
    from .text_encoders import make as text_encoders
else:
    import hf_families
    from encoder_decoders import make as encoder_decoders
    from text_encoders import make as text_encoders

TARGET = Path(__file__).with_name("config_keys.json")
COMMAND = "python tests/golden/make_config_keys.py"
# Older files of Falcon, which transformers does not know by these names, are left out.
ENCODERS = [config for _, config, _ in text_encoders.MODELS.values()]
READERS = [config for config, _, _ in encoder_decoders.MODELS.values()]
CONFIGS = [*hf_families.CONFIGS.values(), *ENCODERS, *READERS]
MODEL_TYPES = sorted({str(config["model_type"]) for config in CONFIGS})
_POPPED = re.compile(r"kwargs\.(?:pop|get|setdefault)\(\s*\"(\w+)\"")


def keys_of(model_type: str) -> dict[str, Any]:
    """Keys and defaults in alphabetical order."""
    import transformers

    base = transformers.PreTrainedConfig
    config_class = transformers.CONFIG_MAPPING[model_type]
    fields = {field.name: _default(field) for field in dataclasses.fields(config_class)}
    also = {*_POPPED.findall(inspect.getsource(config_class)), *config_class.attribute_map}
    for method in (base.__post_init__, base.convert_rope_params_to_dict):
        also |= set(_POPPED.findall(inspect.getsource(method)))
    for config in CONFIGS:
        if config["model_type"] == model_type:
            also |= _asked(config_class, config)
    also = {key for key in also if not hasattr(config_class, key) or key in _popped_by(base)}
    return dict(sorted((dict.fromkeys(also) | fields).items()))


def _popped_by(base: Any) -> set[str]:
    return set(_POPPED.findall(inspect.getsource(base.__post_init__)))


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _asked(config_class: Any, config: dict[str, Any]) -> set[str]:
    """The names that a model and its cache ask of a configuration."""
    import torch
    import transformers

    asked: set[str] = set()
    plain = config_class.__getattribute__

    def note(self: Any, name: str) -> Any:
        asked.add(name)
        return plain(self, name)

    own = config_class(**{key: value for key, value in config.items() if key != "model_type"})
    config_class.__getattribute__ = note
    try:
        if config in ENCODERS:
            is_t5 = "d_kv" in config
            auto = transformers.AutoModelForTextEncoding if is_t5 else transformers.AutoModel
            auto.from_config(own, attn_implementation="eager")(torch.arange(3, 30)[None])
            return asked_for(asked)
        if config in READERS:
            auto = transformers.AutoModelForSeq2SeqLM
            auto.from_config(own, attn_implementation="eager")(
                torch.arange(3, 30)[None], decoder_input_ids=torch.arange(5)[None]
            )
            return asked_for(asked)
        model = transformers.AutoModelForCausalLM.from_config(own, attn_implementation="eager")
        with torch.no_grad(), warnings.catch_warnings(action="ignore", category=FutureWarning):
            first = model(torch.arange(1, 30)[None], use_cache=True)
            model(torch.tensor([[5]]), past_key_values=first.past_key_values)
    finally:
        del config_class.__getattribute__
    return asked_for(asked)


def asked_for(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def made() -> dict[str, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    return {
        "command": COMMAND,
        "peer": f"transformers {transformers.__version__}",
        "keys": {model_type: keys_of(model_type) for model_type in MODEL_TYPES},
    }


def text(found: dict[str, Any]) -> str:
    """JSON with one line for each family."""
    lines = [f"  {json.dumps(name)}: {json.dumps(keys)}" for name, keys in found["keys"].items()]
    head = [f" {json.dumps(key)}: {json.dumps(found[key])}" for key in ("command", "peer")]
    return "{\n" + ",\n".join([*head, ' "keys": {\n' + ",\n".join(lines) + "\n }"]) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text(made()))
