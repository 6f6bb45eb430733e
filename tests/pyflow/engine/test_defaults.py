"""What a folder's generation_config.json says of sampling, and what it cannot say."""

import json
from pathlib import Path

import pytest

from pyflow.cli import main
from pyflow.engine.defaults import Defaults
from pyflow.errors import GenerationWarning
from pyflow.generate.session import ChatSession
from pyflow.model import load
from pyflow.sampling import SamplingParams

from ..tiny_folders import CONFIG, N_VOCAB, write, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


SETTINGS = {
    "bos_token_id": 5,
    "eos_token_id": [3, 257],
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.9,
    "repetition_penalty": 1.05,
    "max_new_tokens": 6,
    "max_length": 512,
    "num_beams": 1,
    "pad_token_id": None,
    "transformers_version": "5.0.0",
}
VALUES = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.9,
    "repeat_penalty": 1.05,
    "repeat_last_n": -1,
}


@pytest.mark.filterwarnings("error")
def test_generation_config_is_what_counts_where_nothing_is_asked_for(folder: Path) -> None:
    write(folder, "generation_config.json", SETTINGS)
    with load(folder, n_threads=1) as model:
        assert model.defaults == Defaults(VALUES, 6, frozenset([3, 257]))
        assert {3, 257} <= model.tokenizer.stop_ids
        done = model.generate("Hello")
        seeded = SamplingParams(**VALUES, seed=done.seed)
        again = model.generate("Hello", sampling=seeded, n_predict=6)
        assert done.tokens == again.tokens
        assert len(model.generate("Hello", n_predict=9).tokens) <= 9
        with ChatSession(model) as session:
            assert session.n_predict == 6
            assert session.sampling.temperature == 0.6
        with ChatSession(model, sampling=SamplingParams(top_k=3), n_predict=-1) as session:
            assert session.n_predict == -1
            assert session.sampling.temperature == SamplingParams().temperature


def test_a_token_that_the_file_names_ends_the_answer(folder: Path) -> None:
    with load(folder, n_threads=1) as model:
        greedy = SamplingParams(temperature=0)
        first = model.generate("Hello", n_predict=1, sampling=greedy).tokens[0]
    write(folder, "generation_config.json", {"eos_token_id": first, "do_sample": False})
    with load(folder, n_threads=1) as model:
        assert model.defaults.values == {"temperature": 0.0}
        assert model.generate("Hello").stop_reason == "eos"


def test_options_count_before_generation_config(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"max_new_tokens": 3, "do_sample": False, "num_beams": 4, "bad_words_ids": [[1]]}
    write(folder, "generation_config.json", settings)
    command = ["generate", "-m", str(folder), "-p", "Hi", "-t", "1", "--raw", "--json"]
    results = []
    for more in ([], ["-n", "5"], ["--temp", "2", "-s", "1"], ["--temp", "2", "-s", "2"]):
        assert main([*command, *more]) == 0
        told = capsys.readouterr()
        results.append(json.loads(told.out)["tokens"])
        (line,) = [text for text in told.err.splitlines() if "warning" in text]
        assert line.endswith("left out: not supported: num_beams, bad_words_ids")
    assert [len(tokens) for tokens in results] == [3, 5, 3, 3]
    assert results[0] == results[1][:3]
    assert results[2] != results[3]


def test_a_pipeline_has_the_same_defaults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "generation_config.json", {"max_new_tokens": 4, "do_sample": False, "top_h": 0.4})
    command = ["generate", "-m", str(folder), "-p", "Hi", "-t", "1", "--raw", "--json"]
    results = []
    for more in ([], ["--pipeline", "iterative", "--stages", "2"]):
        assert main([*command, *more]) == 0
        told = capsys.readouterr()
        results.append(json.loads(told.out)["tokens"])
        assert told.err.count("left out: not supported: top_h") == 1
    assert results[0] == results[1]
    assert len(results[0]) == 4


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("{", {}),
        ('{"top_k": 3,}', {}),
        ([], {}),
        ({"temperature": "hot"}, {}),
        ({"temperature": -1, "top_k": 3}, {"top_k": 3}),
        ({"top_p": 7}, {}),
        ({"top_k": 0.5}, {}),
        ({"top_k": 1 << 40}, {}),
        ({"top_k": 1e300, "min_p": 0.5}, {"min_p": 0.5}),
        ({"repetition_penalty": 0}, {}),
        ({"max_new_tokens": 0}, {}),
        ({"do_sample": "false", "top_k": 3.0}, {"top_k": 3}),
        ({"eos_token_id": ["</s>"]}, {}),
        ({"eos_token_id": 4000}, {}),
        ({"eos_token_id": [True, -1]}, {}),
        ({"eos_token_id": 1 << 70}, {}),
    ],
)
def test_what_a_generation_config_says_wrong_is_told_and_left_out(
    folder: Path, content: object, values: dict[str, float]
) -> None:
    write(folder, "generation_config.json", content)
    with pytest.warns(GenerationWarning, match=r"generation_config\.json: ") as said:
        model = load(folder, n_threads=1)
    assert len(said) == 1
    assert model.defaults.values == values
    assert model.defaults.n_predict == -1
    assert model.tokenizer.stop_ids == {257}
    model.close()


def test_a_generation_config_may_say_off_and_greedy_as_servers_do(folder: Path) -> None:
    write(folder, "generation_config.json", {"top_k": -1, "top_p": 0, "temperature": None})
    with load(folder, n_threads=1) as model:
        assert model.defaults.values == {"top_k": 0, "temperature": 0.0}


def test_end_tokens_past_the_vocabulary_are_left_out_of_a_list(folder: Path) -> None:
    write(folder, "config.json", CONFIG | {"eos_token_id": [3, -1, 4000]})
    write(folder, "generation_config.json", {"eos_token_id": [5, N_VOCAB]})
    with pytest.warns(GenerationWarning) as said:
        model = load(folder, n_threads=1)
    assert model.tokenizer.stop_ids == {3, 5, 257}
    model.close()
    told = sorted(str(warning.message) for warning in said)
    assert [("[-1, 4000]" in text, f"[{N_VOCAB}]" in text) for text in told] == [
        (True, False),
        (False, True),
    ]


def test_what_is_not_supported_is_told_by_its_name(folder: Path) -> None:
    write(folder, "generation_config.json", {"num_beams": 2, "max_length": 20, "odd": "\x1b[2J"})
    with pytest.warns(GenerationWarning, match=r"config\.json: .* num_beams, max_length, odd$"):
        load(folder, n_threads=1).close()
