"""A spec may say which tokens end a text, how messages become one, and how to draw from it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pyflow import load
from pyflow.errors import FormatError, GenerationWarning, SpecError
from pyflow.sampling import SamplingParams
from pyflow.specs.grammar import GENERATION

from . import tiny

GOLDEN = Path(__file__).parents[2] / "golden/families/hf_llama2.json"
HEAD = 'spec = 1\nname = "own"\nextends = "llama"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with a token for each of 96 characters."""
    golden = json.loads(GOLDEN.read_text())
    golden["config"]["eos_token_id"] = [7, 9]
    tiny.write(tmp_path, golden)
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())[:96]
    library = Tokenizer(models.BPE({c: i for i, c in enumerate(characters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def with_spec(folder: Path, text: str) -> Path:
    (folder / "pyflow.toml").write_text(HEAD + text)
    return folder


def opened(folder: Path) -> Any:
    return load(folder, n_threads=1)


def test_config_json_says_which_tokens_end_a_text(folder: Path) -> None:
    golden = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(golden | {"eos_token_id": [7, 9, 50256]}))
    with pytest.warns(GenerationWarning, match=r"config\.json: .*\[50256\]"):
        model = opened(folder)
    assert model.tokenizer.stop_ids == {7, 9}
    assert model.chat_template is None
    model.close()


def test_a_spec_of_ones_own_says_it_instead(folder: Path) -> None:
    text = "[tokenizer]\nstop = 95\n[hf.tokenizer]\nstop = [[3, 5]]\n"
    with opened(with_spec(folder, text)) as model:
        assert model.tokenizer.stop_ids == {3, 5}


def test_a_spec_has_a_template(folder: Path) -> None:
    text = "[prompt]\ntemplate = '''{% for m in messages %}<{{ m.content }}>{% endfor %}'''\n"
    with opened(with_spec(folder, text)) as model:
        assert model.chat_template is not None
        assert model.chat_template.render([{"role": "user", "content": "hi"}]) == "<hi>"


def test_a_spec_says_how_to_draw_before_generation_config(folder: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.5, "repetition_penalty": 1.1, "max_new_tokens": 9}
    (folder / "generation_config.json").write_text(json.dumps(config))
    text = """
[generation]
temperature = 0
top_k = ["$no_such_key", "=n_layers + 1"]
min_p = "$no_such_key"
n_predict = 7
[gguf.generation]
top_k = 5
"""
    with opened(with_spec(folder, text)) as model:
        assert model.defaults.values == {
            "temperature": 0,
            "top_k": 3,
            "top_p": 0.5,
            "repeat_penalty": 1.1,
            "repeat_last_n": -1,
        }
        done = model.generate("Hello")
        greedy = SamplingParams(temperature=0, repeat_penalty=1.1, repeat_last_n=-1)
        assert done.tokens == model.generate("Hello", n_predict=7, sampling=greedy).tokens
        assert len(done.tokens) == 7 or done.stop_reason == "eos"


def test_a_spec_may_set_all_numbers_that_sampling_has() -> None:
    parameters = {field.name for field in fields(SamplingParams)}
    others = {"logit_bias", "seed", "n_logprobs"}
    others |= {"banned_tokens", "banned_strings", "dry_sequence_breakers"}
    assert GENERATION.keys() == parameters - others | {"n_predict"}


@pytest.mark.parametrize(
    ("text", "error", "mentions"),
    [
        ("[hf.tokenizer]\nstop = 96", SpecError, r"tokenizer\.stop.*\b96"),
        ("[hf.tokenizer]\nstop = -1", SpecError, r"tokenizer\.stop.*-1"),
        ('[hf.tokenizer]\nstop = "<end>"', SpecError, r"tokenizer\.stop.*<end>"),
        ("[hf.tokenizer]\nstops = 5", SpecError, "stops.*stop"),
        ("[generation]\ntop_p = 7", SpecError, r"pyflow.toml: generation.top_p.*7"),
        ("[generation]\ntop_k = 0.5", SpecError, r"generation\.top_k.*integer.*0\.5"),
        ("[generation]\ntemperature = '=n_embd - 65'", SpecError, r"generation.temperature.*-1"),
        ("[generation]\ntemperature = '$model_type'", FormatError, "model_type.*'llama'"),
        ("[generation]\nn_predict = 0", SpecError, "n_predict.*integer.*1.*0"),
        ("[generation]\ntop_q = 1", SpecError, "'top_q'.*top_p"),
        ("[prompt]\ntemplate = 5", SpecError, "prompt.template.*5"),
        ("[prompt]\ntemplate = '{% for %}'", FormatError, r"pyflow.toml: prompt.template, line 1"),
    ],
)
def test_what_is_wrong_is_refused(
    text: str, error: type[Exception], mentions: str, folder: Path
) -> None:
    with pytest.raises(error, match=mentions), opened(with_spec(folder, text)) as model:
        assert model.chat_template is not None
