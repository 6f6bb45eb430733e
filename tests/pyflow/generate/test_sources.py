"""Models that read a source give what transformers gives, whoever else reads beside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.generate.beams import Beams
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, speculator

from ..specs import encoders, tiny
from . import students

GOLDEN = Path(__file__).parents[2] / "golden/encoder_decoders"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
# Keys and values are rounded to F16 on both sides; a sum that is a bit off may round the other way.
LOGITS, SCORES = 1e-3, 1e-4
# Options of a search in the words of transformers.
OURS = {
    "num_beams": "n",
    "num_return_sequences": "n_return",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "forced_bos_token_id": "forced_first",
    "forced_eos_token_id": "forced_last",
    "min_new_tokens": "min_tokens",
}
GREEDY = SamplingParams(temperature=0, n_logprobs=2)


def fixture(name: str) -> tiny.Fixture:
    read: tiny.Fixture = json.loads((GOLDEN / f"{name}.json").read_text())
    return read


@pytest.fixture(scope="module", params=["t5", "m2m_100", "student"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pyflow.Model]:
    folder = tmp_path_factory.mktemp("source") / "model"
    if request.param == "student":
        students.write_folder(folder)
    else:
        tiny.write(folder, fixture(request.param))
    with pyflow.load(folder, n_threads=2) as loaded:
        yield loaded


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_texts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    with pyflow.load(tiny.write(tmp_path / "model", given), n_threads=2) as loaded:
        found = loaded.logits(given["tokens"], given["source"])[given["rows"]]
        expected = np.array(given["logits"])
        assert np.abs(found - expected).max() <= LOGITS * np.abs(expected).max()
        done = loaded.generate(given["source"], n_predict=len(given["written"]), sampling=GREEDY)
        end = [given["config"]["eos_token_id"]] if done.stop_reason == "eos" else []
        assert done.tokens + end == given["written"]


@pytest.mark.parametrize("name", ["t5", "t5_untied"])
def test_gguf_files_hold_the_same(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    given["config"] |= {"relative_attention_max_distance": 128}  # which GGUF does not say
    metadata, tensors = encoders.gguf("t5", f"../encoder_decoders/{name}")
    path = tiny.write_gguf(tmp_path / "model.gguf", metadata, tensors)
    with (
        pyflow.load(tiny.write(tmp_path / "model", given), n_threads=2) as folder,
        pyflow.load(path, n_threads=2) as file,
    ):
        found = [one.logits(given["tokens"], given["source"]) for one in (folder, file)]
        assert (found[0] == found[1]).all()


def sources(n: int) -> list[list[int]]:
    random = np.random.default_rng(n)
    return [random.integers(5, 90, length).tolist() for length in random.integers(1, 70, n)]


def test_a_text_has_the_bits_that_it_has_alone(model: pyflow.Model) -> None:
    given = sources(6)
    alone = [model.generate(one, n_predict=12, sampling=GREEDY) for one in given]
    together = model.generate(given, n_predict=12, sampling=GREEDY)
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == other.logprobs


@pytest.mark.parametrize("name", NAMES)
def test_beams_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    folder = tiny.write(tmp_path / "model", given)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    with pyflow.load(folder, n_threads=2) as loaded:
        for search in given["beams"]:
            how = Beams(**{OURS[key]: value for key, value in search["options"].items()})
            (found,) = loaded.beam_search(given["source"], how, n_predict=24)
            assert [one.tokens for one in found] == search["texts"], search["options"]
            scores = [one.score for one in found]
            assert scores == pytest.approx(search["scores"], rel=SCORES, abs=SCORES)


def test_threads_and_chunks_change_no_bit(model: pyflow.Model) -> None:
    (source,) = sources(1)
    tokens = [0, *np.random.default_rng(3).integers(5, 90, 20).tolist()]
    whole = model.logits(tokens, source)
    with pyflow.load(model.path, n_threads=1) as other:
        assert (other.logits(tokens, source) == whole).all()
    with model.context(64, n_source=100) as context:
        context.read_sources({0: source})
        parts = [context.forward(tokens[i : i + 4], logits="all") for i in range(0, 21, 4)]
        assert (np.concatenate(parts) == whole).all()


def test_beams_of_a_source_do_not_depend_on_others(model: pyflow.Model) -> None:
    given = sources(4)
    together = model.beam_search(given, Beams(n=3, n_return=3), n_predict=10)
    for one, found in zip(given, together, strict=True):
        assert model.beam_search(one, Beams(n=3, n_return=3), n_predict=10) == [found]
    greedy = model.generate(given[0], n_predict=10, sampling=GREEDY)
    assert model.beam_search(given[0], Beams(n=1), n_predict=10)[0][0].tokens == greedy.tokens


def test_answers_begin_with_the_token_that_files_force(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "model", fixture("bart"))
    config = {"forced_bos_token_id": 7, "num_beams": 1, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with pyflow.load(folder, n_threads=1) as loaded:
        ((best,),) = loaded.beam_search([5, 6, 7, 8], n_predict=10)
        done = loaded.generate([5, 6, 7, 8], n_predict=9, sampling=GREEDY)
        assert best.tokens == [7, *done.tokens]
        assert done.stop_reason == "length"


def test_languages_frame_sources_and_begin_answers(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "model", fixture("m2m_100"))
    students.write_tokenizer(folder / "tokenizer.json", 87)
    students.add_languages(folder / "tokenizer.json", ["__en__", "__de__", "__fr__"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pyflow.load(folder, n_threads=1) as loaded:
        assert loaded.tokenizer.encode("w5") == [87, 5, 0]
        plain = loaded.generate("w5 w9", n_predict=6, sampling=GREEDY)
        done = loaded.generate(
            "w5 w9", n_predict=6, sampling=GREEDY, from_language="fr", to_language="de"
        )
        ((best,),) = loaded.beam_search(
            "w5 w9", Beams(n=1), n_predict=7, from_language="fr", to_language="de"
        )
        ids = [89, 5, 9, 0]
        wanted = loaded.logits([1, 88, *done.tokens], ids)[1:-1].argmax(axis=1)
        assert done.tokens == wanted.tolist()
        assert best.tokens == [88, *done.tokens]
        assert done.logprobs != plain.logprobs
        of_ids = loaded.generate(ids, n_predict=6, sampling=GREEDY, to_language="de")
        assert of_ids.tokens == done.tokens
        for options, says in (
            ({"to_language": "xx"}, "'xx'"),
            ({"from_language": "de", "prompt": [5]}, "sources as text"),
        ):
            with pytest.raises(PyflowError, match=says):
                loaded.generate(**{"prompt": "w5", **options})


def test_drafts_change_no_token(model: pyflow.Model) -> None:
    given = sources(3)
    plain = model.generate(given, n_predict=20, sampling=GREEDY)
    with speculator(model, Speculation(method="lookup")) as drafts:
        drafted = model.generate(given, n_predict=20, sampling=GREEDY, speculator=drafts)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]


def test_sequences_share_a_source_until_the_last_has_dropped_it(model: pyflow.Model) -> None:
    first, second = sources(2)
    with model.context(64, n_seq_max=3, n_source=200) as context:
        context.read_sources({0: first, 1: second})
        context.share_source(0, 2)
        assert context.n_free_source == 200 - len(first) - len(second)
        rows = [context.forward([0, 7, 8], seqs=seq, logits="all") for seq in range(3)]
        assert (rows[0] == rows[2]).all()
        assert (rows[0] != rows[1]).any()
        context.drop_source(0)
        assert context.n_free_source == 200 - len(first) - len(second)
        assert (context.forward([9], seqs=2) == model.logits([0, 7, 8, 9], first)[-1:]).all()
        with pytest.raises(ShapeError, match="expected a source, found none"):
            context.forward([9], seqs=0)
        context.clear()
        assert context.n_free_source == 200


def test_what_needs_no_source_is_refused_by_name(model: pyflow.Model) -> None:
    with pytest.raises(UnsupportedError, match="reads a source"):
        model.conversation()
    with pytest.raises(UnsupportedError, match="reads a source"):
        model.embed("a text")
