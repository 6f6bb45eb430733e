"""Models that read a source, over HTTP: the text that the model alone writes, whoever else asks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pyflow
from pyflow.sampling import SamplingParams
from pyflow.serve.settings import Settings

from ...generate import students
from ..conftest import Server

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyflow.Model]:
    folder = tmp_path_factory.mktemp("served") / "student"
    students.write_folder(folder)
    with pyflow.load(folder, n_threads=2) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def served(model: pyflow.Model) -> Iterator[Server]:
    server = Server({"student": model}, Settings(n_parallel=3))
    yield server
    server.stop()


def test_requests_at_once_have_the_texts_that_the_model_writes_alone(
    served: Server, model: pyflow.Model
) -> None:
    random = np.random.default_rng(2)
    sources = [random.integers(2, 90, n).tolist() for n in random.integers(1, 700, 12)]
    bodies = [{"prompt": ids, "seed": i, "max_tokens": 9} for i, ids in enumerate(sources)]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda body: served.post(PATH, **body, logprobs=1), bodies))
    for i, (source, one) in enumerate(zip(sources, found, strict=True)):
        sampling = SamplingParams(seed=i, n_logprobs=1)
        alone = model.generate(source, n_predict=9, sampling=sampling)
        (choice,) = one["choices"]
        assert choice["text"] == alone.text
        wanted = [place.logprob for place in alone.logprobs or ()]
        assert choice["logprobs"]["token_logprobs"] == wanted
        assert one["usage"]["prompt_tokens"] == len(source) == len(alone.prompt_tokens)


def test_languages_are_those_of_the_vocabulary(served: Server) -> None:
    status, said = served.error(PATH, prompt="w5", to_language="de")
    assert (status, "'de'" in str(said)) == (400, True)


def test_a_text_is_framed_as_a_source(served: Server, model: pyflow.Model) -> None:
    found = served.post(PATH, prompt=["w5 w17", "w6"], n=2, seed=3, max_tokens=5)
    sampling = SamplingParams(seed=3)
    alone = model.generate([[5, 17, 0]] * 2 + [[6, 0]] * 2, n_predict=5, sampling=sampling)
    assert [choice["text"] for choice in found["choices"]] == [one.text for one in alone]
    assert not any(one.text.startswith(" ") for one in alone)
    assert alone[0].text == model.text_of(alone[0].tokens)[0]
    found = served.post(PATH, prompt="w5 w17", seed=3, logprobs=1)
    (choice,) = found["choices"]
    assert found["usage"]["completion_tokens"] > 16 or choice["finish_reason"] == "stop"
    offsets = choice["logprobs"]["text_offset"]
    assert choice["text"][offsets[1] :].startswith(choice["logprobs"]["tokens"][1])


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (PATH, {"prompt": [5] * 1025}, "1,025 tokens"),
        (PATH, {"prompt": "w5", "echo": True}, "echo"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w5"}]}, ""),
        ("/v1/embeddings", {"input": "w5"}, "reads a source"),
    ],
)
def test_what_needs_another_model_is_refused(
    served: Server, path: str, body: dict[str, object], says: str
) -> None:
    status, answer = served.error(path, **body)
    assert status == 400
    assert says in str(answer)
