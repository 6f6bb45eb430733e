"""Model.embed and what goes with it: tokens, pools, prompts, cuts, and files that are broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

import pyflow
from pyflow.embed.framing import frame
from pyflow.embed.recipe import POOLS
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.specs.model_spec import Pool

from .conftest import WORDS, Made

TEXTS = ["the cat sat on the mat", "bank of the river", "日本 is é!", "a" * 150, "to [SEP] is"]
MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
POOLING = "1_Pooling/config.json"


def test_texts_have_the_tokens_of_the_library(bert: pyflow.Model) -> None:
    """Truncation and padding of its file aside: they are for training."""
    library = tokenizers.Tokenizer.from_file(str(bert.path / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    for text in TEXTS[:3]:
        framed = bert.encoder.frame(text)
        assert framed.ids == library.encode(text).ids
        pair = library.encode(text, TEXTS[0])
        framed = bert.encoder.frame(text, TEXTS[0])
        assert (framed.ids, framed.types) == (pair.ids, pair.type_ids)
    assert bert.encoder.frame(TEXTS[4]).ids.count(WORDS.index("[SEP]")) == 1


def test_pairs_are_cut_as_the_library_cuts_them(bert: pyflow.Model) -> None:
    library = tokenizers.Tokenizer.from_file(str(bert.path / "tokenizer.json"))
    library.no_padding()
    random = np.random.default_rng(2)
    for _ in range(60):
        one, two = (" ".join(["cat"] * int(n)) for n in random.integers(1, 12, 2))
        most = int(random.integers(5, 20))
        library.enable_truncation(most, strategy="longest_first")
        framed = frame(bert.tokenizer, one, two, most=most, truncate=True)
        assert framed.ids == library.encode(one, two).ids
        assert framed.types == library.encode(one, two).type_ids


def expected(model: pyflow.Model, text: str, pool: Pool) -> Any:
    states = model.encoder.states([model.encoder.frame(text)]).astype(np.float64)
    n = len(states)
    weights = np.arange(1, n + 1)[:, None]
    return {
        "first": states[0],
        "last": states[-1],
        "max": states.max(0),
        "mean": states.mean(0),
        "mean_sqrt": states.sum(0) / np.sqrt(n),
        "weighted": (states * weights).sum(0) / weights.sum(),
    }[pool]


@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_is_what_its_name_says(pool: Pool, bert: pyflow.Model) -> None:
    found = bert.embed(TEXTS[0], pool=pool, normalize=False)
    wanted = expected(bert, TEXTS[0], pool)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    unit = bert.embed([TEXTS[0]], pool=pool, normalize=True, dimensions=20)
    assert unit.shape == (1, 20)
    assert np.abs(unit[0] - wanted[:20] / np.linalg.norm(wanted[:20])).max() <= 1e-5


def test_modules_of_sentence_transformers_are_followed(made: Made) -> None:
    files = {
        "modules.json": [
            *MODULES,
            {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        POOLING: {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        "2_Dense/config.json": {"in_features": 96, "out_features": 24, "bias": True},
        "sentence_bert_config.json": {"max_seq_length": 9},
        "config_sentence_transformers.json": {
            "prompts": {"query": "the cat ", "document": ""},
            "default_prompt_name": None,
        },
    }
    folder = made("bert", **files)
    random = np.random.default_rng(0)
    weight = random.normal(0, 0.2, (24, 96)).astype(np.float32)
    bias = random.normal(0, 0.2, 24).astype(np.float32)
    safetensors.numpy.save_file(
        {"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense/model.safetensors"
    )
    with pyflow.load(folder, n_threads=1) as model:
        text = "sat on the mat"
        pooled = np.concatenate([expected(model, text, "first"), expected(model, text, "mean")])
        wanted = np.tanh(weight @ pooled + bias)
        wanted /= np.linalg.norm(wanted)
        assert np.abs(model.embed(text) - wanted).max() <= 1e-5
        asked = model.embed(text, prompt_name="query")
        assert np.array_equal(asked, model.embed("the cat " + text))
        with pytest.raises(UnsupportedError, match="query, document"):
            model.embed(text, prompt_name="other")
        with pytest.raises(ShapeError, match=r"9 tokens, found 10"):
            model.embed("the cat sat on the mat of bank")
        cut = model.embedded(["the cat sat on the mat of bank"], truncate=True)
        assert (cut.n_tokens, cut.n_cut) == ([9], 1)


def test_prompts_may_be_left_out_of_the_mean(made: Made) -> None:
    folder = made(
        "bert",
        **{
            "modules.json": MODULES,
            POOLING: {"pooling_mode": "mean", "include_prompt": False},
        },
    )
    with pyflow.load(folder, n_threads=1) as model:
        found = model.embed("the mat", prompt="a cat ")
        states = model.encoder.states([model.encoder.frame("a cat the mat")])
        assert np.abs(found - states[3:].mean(0)).max() <= 1e-5  # [CLS] a cat


@pytest.mark.parametrize(
    ("files", "mentions"),
    [
        ({"modules.json": []}, ("modules.json", "none")),
        ({"modules.json": {"path": ""}}, ("modules.json", "array")),
        ({"modules.json": [{"path": "", "type": "x.Router"}]}, ("modules.json", "Router")),
        (
            {"modules.json": [*MODULES, {"path": "2", "type": "x.LSTM"}], POOLING: {}},
            ("[2].type", "LSTM"),
        ),
        (
            {"modules.json": [MODULES[0], {"path": "../x", "type": "a.Pooling"}]},
            ("[1].path", "../x"),
        ),
        ({"modules.json": MODULES}, (POOLING, "found none")),
        (
            {"modules.json": MODULES, POOLING: {"pooling_mode": "median"}},
            ("pooling_mode", "median"),
        ),
        (
            {"modules.json": MODULES, POOLING: {"pooling_mode_mean_tokens": 1}},
            ("pooling_mode_mean_tokens", "1"),
        ),
        (
            {"modules.json": MODULES, POOLING: {"pooling_mode_of_mine": True}},
            ("pooling_mode_of_mine", "mean"),
        ),
        ({"sentence_bert_config.json": {"max_seq_length": 0}}, ("max_seq_length", "0")),
        (
            {"config_sentence_transformers.json": {"default_prompt_name": "query"}},
            ("default_prompt_name", "query"),
        ),
        (
            {
                "modules.json": [*MODULES, {"path": "2", "type": "x.Dense"}],
                POOLING: {},
                "2/config.json": {"in_features": 5, "out_features": 4},
            },
            ("in_features", "48", "5"),
        ),
        (
            {
                "modules.json": [*MODULES, {"path": "2", "type": "x.Dense"}],
                POOLING: {},
                "2/config.json": {"in_features": 48, "out_features": 4},
            },
            ("model.safetensors", "neither"),
        ),
    ],
)
def test_broken_files_are_refused_by_name(
    files: dict[str, object], mentions: tuple[str, ...], made: Made
) -> None:
    with pyflow.load(made("bert", **files), n_threads=1) as model:
        with pytest.raises(PyflowError) as found:
            model.embed("the cat")
        assert all(word in str(found.value) for word in mentions), found.value
        assert "\n" not in str(found.value)


def test_what_cannot_be_embedded_is_refused(bert: pyflow.Model) -> None:
    with pytest.raises(PyflowError, match="text 2: expected some text"):
        bert.embed(["the cat", "  "])
    with pytest.raises(ShapeError, match=r"text 2: expected up to 70 tokens, found 71"):
        bert.embed(["the cat", "cat " * 69])
    with pytest.raises(ShapeError, match=r"query: expected up to 70 tokens"):
        bert.rerank("cat " * 69, ["a"], truncate=False)
    with pytest.raises(ShapeError, match="dimensions: expected 1 to 48, found 49"):
        bert.embed("the cat", dimensions=49)
    with pytest.raises(UnsupportedError, match="head for classes"):
        bert.classify(["the cat"])
    with pytest.raises(UnsupportedError, match="pyflow embed"):
        bert.generate("the cat")
    with pytest.raises(UnsupportedError, match="pyflow embed"):
        bert.logits([1, 2])
    assert bert.embed(["cat " * 68, "x"]).shape == (2, 48)


def test_masks_are_filled(bert: pyflow.Model) -> None:
    framed = bert.encoder.frame("the [MASK] sat", parse_special=True)
    place = framed.ids.index(WORDS.index("[MASK]"))
    logits = bert.encoder.guesses(framed, [place])[0].astype(np.float64)
    (guesses,) = bert.fill_mask("the [MASK] sat", top_k=90)
    assert [guess.token for guess in guesses] == np.argsort(-logits, kind="stable").tolist()
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)
    with pytest.raises(PyflowError, match=r"\[MASK\]"):
        bert.fill_mask("the cat")


def test_documents_are_ranked(made: Made, bert: pyflow.Model) -> None:
    documents = ["the river bank", "the cat sat", "a mat", "the cat sat"]
    ranked = bert.rerank("the cat sat", documents)
    assert [one.index for one in ranked[:2]] == [1, 3]
    assert ranked[0].score == pytest.approx(1, abs=1e-5)
    with pyflow.load(made("bert_classes"), n_threads=1) as model:
        (best,) = model.rerank("the cat", documents, top_n=1)
        scores = [
            model.encoder.classes([model.encoder.frame("the cat", one)])[0].astype(np.float64)
            for one in documents
        ]
        likely = [np.exp(s)[-1] / np.exp(s).sum() for s in scores]
        assert best.index == int(np.argmax(likely))
        assert best.score == pytest.approx(max(likely), rel=1e-5)
        assert sum(model.classify(["the cat"])[0]) == pytest.approx(1)


Run = Callable[..., tuple[int, str, str]]


def test_the_command_prints_vectors(made: Made, capsys: Any, tmp_path: Path) -> None:
    from pyflow.cli import main

    folder = str(made("bert"))
    assert main(["embed", "-m", folder, "the cat", "a mat"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with pyflow.load(folder) as model:
        wanted = model.embed(["the cat", "a mat"])
    assert np.array_equal(np.array(lines, np.float32), wanted)
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "the cat", "id": 7}\n{"text": "a mat"}\n')
    assert main(["embed", "-m", folder, "--jsonl", "-f", str(file)]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["index"], one["tokens"]) for one in objects] == [(0, 4), (1, 4)]
    assert objects[1]["embedding"] == lines[1]
    assert main(["embed", "-m", folder, "--npy", str(tmp_path / "x.npy"), "the cat", "a mat"]) == 0
    assert np.array_equal(np.load(tmp_path / "x.npy"), wanted)
    assert main(["rerank", "-m", folder, "-p", "the cat", "a mat", "the cat"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("the cat")
    assert main(["rerank", "-m", folder, "-p", "the cat", "cat " * 90, "a mat"]) == 0
    assert "1 of 3 texts were cut off" in capsys.readouterr().err
    (tmp_path / "gaps").write_text("the cat\n\na mat\n")
    for given, told in (
        (["embed", "-f", str(tmp_path / "gaps")], "line 2"),
        (["embed", "a", "", "b"], "TEXT 2"),
        (["rerank", "-p", "", "a"], "-p"),
    ):
        assert main([*given, "-m", folder]) == 2
        assert told in capsys.readouterr().err
    for command in (["generate", "-p", "the cat"], ["eval", "ppl", "-f", str(file)]):
        assert main([*command[:1], *command[1:], "-m", folder]) == 3
        error = capsys.readouterr().err
        assert "encoder" in error
        assert "pyflow embed" in error


def test_a_model_that_writes_has_the_state_of_its_last_token(
    model_path: Callable[[str], Path],
) -> None:
    with pyflow.load(model_path("smollm2")) as model:
        texts = ["Once upon a time", "Rivers flow"]
        found = model.embed(texts)
        ids = model.tokenizer.encode(texts[1])
        assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1], abs=1e-6)
        assert np.array_equal(found[1], model.embed(texts[1]))
        assert not np.array_equal(found[1], model.embed(texts[1], pool="mean"))
        assert model.embedded(texts).n_tokens[1] == len(ids)
        with pytest.raises(UnsupportedError, match="last or mean"):
            model.embed(texts, pool="first")
        with pytest.raises(UnsupportedError, match="expected an encoder"):
            model.rerank("a", texts)
