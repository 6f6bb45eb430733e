"""Makes special_tokens.json: what transformers encodes where files name further tokens.

    python tests/golden/make_special_tokens.py > tests/golden/special_tokens.json

Needs torch and transformers 5.24; made with tokenizers 0.23.3.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT = "a<new>b <end> <n2>c <n3>|<tool>d <n4> e <unk>"


def token(content: str, **flags: object) -> dict[str, Any]:
    """As an object of the files; all flags are off if not given."""
    flags_ = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, **flags_, **flags}


def added(content: str, **flags: object) -> dict[str, Any]:
    return {"__type": "AddedToken", **token(content, **flags)}


END = {"eos_token": "<end>"}
CONFIG, MAP, ADDED = "tokenizer_config", "special_tokens_map", "added_tokens"
# name -> contents of the files beside tokenizer.json, whose last ids are <turn>, <end> and <tool>.
CASES: dict[str, dict[str, Any]] = {
    "nothing": {CONFIG: END},
    "additional": {CONFIG: {**END, "additional_special_tokens": ["<new>", "<n2>"]}},
    "extra list": {CONFIG: {**END, "extra_special_tokens": ["<n2>", "<new>"]}},
    "extra dict": {CONFIG: {**END, "extra_special_tokens": {"x": "<n2>", "y": "<new>"}}},
    "extra objects": {
        CONFIG: {**END, "extra_special_tokens": [added("<n2>", lstrip=True, special=True), "<n3>"]}
    },
    "extra before additional": {
        CONFIG: {"additional_special_tokens": ["<n2>"], "extra_special_tokens": ["<new>"]}
    },
    "extra dict and additional": {
        CONFIG: {"additional_special_tokens": ["<n2>"], "extra_special_tokens": {"x": "<new>"}}
    },
    "empty extra": {CONFIG: {"additional_special_tokens": ["<n2>"], "extra_special_tokens": []}},
    "roles as text": {CONFIG: {"pad_token": "<n2>", "bos_token": "<new>", "unk_token": "<n3>"}},
    "roles as objects": {
        CONFIG: {"pad_token": added("<n2>", rstrip=True), "bos_token": added("<n3>", lstrip=True)}
    },
    "a role twice": {CONFIG: {"pad_token": "<n2>", "eos_token": "<n2>", "bos_token": "<n3>"}},
    "names of their own": {
        CONFIG: {"z_token": "<n4>", "extra_special_tokens": ["<new>"], "a_token": "<n2>", **END}
    },
    "roles before lists": {
        CONFIG: {"extra_special_tokens": ["<new>", "<end>"], "mask_token": "<n3>", **END}
    },
    "a piece becomes special": {CONFIG: {**END, "extra_special_tokens": ["b", "<new>"]}},
    "decoder": {
        CONFIG: {"added_tokens_decoder": {"259": token("<new>"), "260": token("<n2>", lstrip=True)}}
    },
    "decoder of other ids": {
        CONFIG: {
            "added_tokens_decoder": {"300": token("<n2>"), "290": token("<new>", special=True)}
        }
    },
    "decoder and lists": {
        CONFIG: {
            "added_tokens_decoder": {"259": token("<new>", special=True)},
            "extra_special_tokens": ["<n2>", "<new>"],
            "pad_token": "<n3>",
        }
    },
    "decoder hides the map": {
        CONFIG: {**END, "added_tokens_decoder": {}},
        MAP: {"pad_token": "<new>"},
        ADDED: {"<n2>": 259},
    },
    "decoder names one twice": {
        CONFIG: {
            "added_tokens_decoder": {
                "259": token("<n2>"),
                "260": token("<n2>"),
                "261": token("<n3>"),
            }
        }
    },
    "decoder names a piece": {
        CONFIG: {"added_tokens_decoder": {"1": token("b"), "259": token("<n2>")}}
    },
    "a map alone": {MAP: {"pad_token": "<n2>", "eos_token": token("<new>", lstrip=True)}},
    "a map wins": {CONFIG: {"pad_token": "<new>"}, MAP: {"pad_token": "<n2>"}},
    "lists of a map": {MAP: {"additional_special_tokens": ["<new>", "<n2>"]}},
    "lists of both": {
        CONFIG: {"additional_special_tokens": ["<new>"]},
        MAP: {"additional_special_tokens": ["<n2>"]},
    },
    "extra lists of both": {
        CONFIG: {"extra_special_tokens": ["<new>"]},
        MAP: {"extra_special_tokens": ["<n2>", token("<n3>", rstrip=True)]},
    },
    "extra dict of a map": {
        CONFIG: {"q_token": "<n4>"},
        MAP: {"extra_special_tokens": {"x": "<n2>"}, "y_token": "<n3>"},
    },
    "added": {ADDED: {"<new>": 259, "<n2>": 260}},
    "added in disorder": {ADDED: {"<n3>": 261, "<new>": 259, "<n2>": 260}},
    "added of other ids": {ADDED: {"<n2>": 400, "<new>": 300}},
    "added and a role": {CONFIG: {"pad_token": "<new>"}, ADDED: {"<new>": 259, "<n2>": 260}},
    "added where one is": {ADDED: {"<n2>": 257, "<new>": 259}},
    "a single word": {
        CONFIG: {"extra_special_tokens": [added("c", single_word=True, special=True)]}
    },
    "empty": {CONFIG: {"pad_token": "", "extra_special_tokens": ["", "<n2>"]}},
}


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_tokens(
        [
            AddedToken("<turn>", special=True),
            AddedToken("<end>", special=True),
            AddedToken("<tool>", normalized=False),
        ]
    )
    library.save(str(folder / "tokenizer.json"))


def write_case(folder: Path, files: dict[str, Any]) -> None:
    write_tokenizer(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def main() -> None:
    from transformers import AutoTokenizer

    found: dict[str, Any] = {}
    for name, files in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_case(folder, files)
            (folder / "config.json").write_text('{"model_type": "llama"}')
            tokenizer = AutoTokenizer.from_pretrained(folder)
            roles = [tokenizer.bos_token_id, tokenizer.eos_token_id]
            control = sorted({i for i in tokenizer.all_special_ids if i is not None})
            found[name] = {"ids": tokenizer.encode(TEXT), "roles": roles, "control": control}
    lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
