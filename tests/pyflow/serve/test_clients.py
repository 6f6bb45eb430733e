"""The real clients of OpenAI, Anthropic and LangChain get along with the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

from .conftest import Server

ASKED: list[Any] = [{"role": "user", "content": "Name three rivers."}]
Client = Callable[[str], Any]


@pytest.fixture
def client() -> Callable[[str], Any]:
    """Imports a package of the extra `clients`; skips without."""

    def load(name: str) -> Any:
        return pytest.importorskip(name, reason=f"no {name} here: pip install '.[clients]'")

    return load


@contextmanager
def openai(server: Server, client: Client) -> Iterator[Any]:
    package = client("openai")
    with package.OpenAI(base_url=f"{server.serving.url}/v1", api_key="none") as found:
        yield found


def test_openai_chats(server: Server, client: Client) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "messages": ASKED, "stop": ["e"], "seed": 3}
    with openai(server, client) as api:
        whole = api.chat.completions.create(**asked, n=2)
        assert [choice.finish_reason for choice in whole.choices] == ["stop", "stop"]
        with api.chat.completions.stream(**asked, n=2, logprobs=True) as stream:
            for event in stream:
                assert event.type != "error"
            final = stream.get_final_completion()
        for a, b in zip(whole.choices, final.choices, strict=True):
            assert a.message.content == b.message.content
        (only,) = api.models.list().data
        assert only.id == "smollm2"


def test_openai_parses_a_schema(server: Server, client: Client) -> None:
    pydantic = client("pydantic")

    class City(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        name: Literal["Paris", "Rome"]
        old: bool

    with openai(server, client) as api:
        found = api.chat.completions.parse(model="smollm2", messages=ASKED, response_format=City)
        assert isinstance(found.choices[0].message.parsed, City)
        response = api.responses.parse(model="smollm2", input="A city?", text_format=City)
        assert isinstance(response.output_parsed, City)


def test_openai_completes_embeds_and_responds(server: Server, client: Client) -> None:
    with openai(server, client) as api:
        text = api.completions.create(model="smollm2", prompt="One, two,", max_tokens=4, logprobs=2)
        assert len(text.choices[0].logprobs.tokens) == 4
        vectors = api.embeddings.create(model="smollm2", input=["a", "b"], dimensions=16)
        assert [len(each.embedding) for each in vectors.data] == [16, 16]
        form = {"type": "json_schema", "name": "yes", "schema": {"type": "boolean"}}
        asked: dict[str, Any] = {"model": "smollm2", "input": "Yes?", "text": {"format": form}}
        whole = api.responses.create(**asked, temperature=0)
        assert whole.output_text in ("true", "false")
        with api.responses.stream(**asked, temperature=0) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text == whole.output_text


def test_openai_is_told_what_is_wrong(server: Server, client: Client) -> None:
    package = client("openai")
    with openai(server, client) as api:
        with pytest.raises(package.BadRequestError) as wrong:
            api.chat.completions.create(model="smollm2", messages=ASKED, top_p=2)
        assert wrong.value.param == "top_p"
        with pytest.raises(package.NotFoundError):
            api.chat.completions.create(model="gpt", messages=ASKED)


def test_anthropic_chats(server: Server, client: Client) -> None:
    package = client("anthropic")
    asked: dict[str, Any] = {"model": "smollm2", "messages": ASKED, "max_tokens": 8}
    asked["extra_body"] = {"temperature": 0}
    with package.Anthropic(base_url=server.serving.url, api_key="none") as api:
        whole = api.messages.create(**asked, system="Be brief.")
        with api.messages.stream(**asked, system="Be brief.") as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
            assert stream.get_final_message().stop_reason == whole.stop_reason == "max_tokens"
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        held = {"format": {"type": "json_schema", "schema": schema}}
        found = api.messages.create(**asked, output_config=held)
        assert found.content[0].text.replace(" ", "").replace("\n", "") == "{}"
        assert api.messages.count_tokens(model="smollm2", messages=ASKED).input_tokens > 0
        with pytest.raises(package.BadRequestError):
            api.messages.create(**{**asked, "messages": []})


def test_langchain_chats_and_embeds(server: Server, client: Client) -> None:
    package = client("langchain_openai")
    how: dict[str, Any] = {"base_url": f"{server.serving.url}/v1", "api_key": "none"}
    chat = package.ChatOpenAI(model="smollm2", max_tokens=6, temperature=0, **how)
    assert chat.invoke("Name three rivers.").response_metadata["finish_reason"] == "length"
    streamed = "".join(chunk.content for chunk in chat.stream("Name three rivers."))
    assert streamed == chat.invoke("Name three rivers.").content
    texts = package.OpenAIEmbeddings(model="smollm2", check_embedding_ctx_length=False, **how)
    assert len(texts.embed_query("a")) == 576
