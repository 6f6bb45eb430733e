"""A server of an encoder: vectors and ranks are the model's, whoever else asks; text is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow.model import Model
from pyflow.serve.settings import Settings

from ..serve.conftest import Server
from ..specs import encoders, tiny
from .conftest import write_vocabulary

TEXTS = ["the cat sat on the mat", "the river bank", "a dog", "is it?"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder: Path = tiny.write(tmp_path_factory.mktemp("m") / "bert", encoders.fixture("bert"))
    write_vocabulary(folder)
    with pyflow.load(folder, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def encoding(bert: Model) -> Iterator[Server]:
    server = Server({"bert": bert}, Settings(port=0))
    yield server
    server.stop()


def test_vectors_are_the_models(encoding: Server, bert: Model) -> None:
    wanted = bert.embed(TEXTS)
    found = encoding.post("/v1/embeddings", input=TEXTS)
    assert [one["index"] for one in found["data"]] == [0, 1, 2, 3]
    vectors = np.array([one["embedding"] for one in found["data"]], np.float32)
    assert np.array_equal(vectors, wanted)
    assert found["usage"]["prompt_tokens"] == sum(len(bert.encoder.frame(t).ids) for t in TEXTS)
    coded = encoding.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64", dimensions=9)
    raw = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert np.array_equal(raw, bert.embed(TEXTS[0], dimensions=9))
    pooled = encoding.post("/v1/embeddings", input=TEXTS[0], pooling="max")["data"][0]["embedding"]
    assert np.array_equal(np.array(pooled, np.float32), bert.embed(TEXTS[0], pool="max"))


def test_many_at_once_get_the_bits_of_each_alone(encoding: Server, bert: Model) -> None:
    def ask(i: int) -> bytes:
        text = TEXTS[i % 4] * (1 + i % 3)
        data = encoding.post("/v1/embeddings", input=text)["data"]
        vector = np.array(data[0]["embedding"], np.float32)
        return bytes((vector.tobytes() == bert.embed(text).tobytes() and b"same") or b"")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(24))) == {b"same"}


def test_documents_are_ranked(encoding: Server, bert: Model) -> None:
    found = encoding.post("/v1/rerank", query="a cat", documents=[*TEXTS, {"text": "a cat"}])
    ranked = bert.rerank("a cat", [*TEXTS, "a cat"])
    assert [(one["index"], one["relevance_score"]) for one in found["results"]] == [
        (one.index, one.score) for one in ranked
    ]
    best = encoding.post(
        "/rerank", query="a cat", documents=["a dog", "a cat"], top_n=1, return_documents=True
    )
    long = encoding.post("/v1/embeddings", input="cat " * 25_000, truncate=True)
    wanted = bert.embed("cat " * 90, truncate=True)
    assert np.array_equal(np.array(long["data"][0]["embedding"], np.float32), wanted)
    assert (found["n_cut"], best["n_cut"]) == (0, 0)
    assert encoding.post("/v1/rerank", query="cat", documents=["cat " * 90, "a"])["n_cut"] == 1
    assert [one["document"] for one in best["results"]] == [{"text": "a cat"}]


@pytest.mark.parametrize(
    ("path", "body", "mentions"),
    [
        ("/v1/embeddings", {"input": "cat " * 80}, ("input", "70", "82")),
        ("/v1/embeddings", {"input": ["the cat", " "]}, ("input", "blanks")),
        ("/v1/embeddings", {"input": "a", "dimensions": 49}, ("dimensions", "48")),
        ("/v1/embeddings", {"input": "a", "prompt_name": "query"}, ("query", "none")),
        ("/v1/rerank", {"query": "a", "documents": []}, ("documents",)),
        ("/v1/rerank", {"query": " ", "documents": ["a"]}, ("query", "blanks")),
        ("/v1/completions", {"prompt": "the cat"}, ("encoder", "pyflow embed")),
        ("/v1/responses", {"input": "the cat"}, ("encoder", "pyflow embed")),
    ],
)
def test_what_cannot_be_done_is_refused(
    path: str, body: dict[str, object], mentions: tuple[str, ...], encoding: Server
) -> None:
    status, found = encoding.error(path, **body)
    assert status == 400, found
    assert all(word in str(found) for word in mentions), found
