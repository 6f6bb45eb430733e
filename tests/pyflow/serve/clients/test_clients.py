"""The packages that people use understand the server: openai, anthropic and LangChain's."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyflow.model import Model
from tests.conftest import Import
from tests.pyflow.serve.conftest import Server, template_with_tools, until

MESSAGES = [{"role": "user", "content": "Name three colours."}]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def openai(client: Import) -> Any:
    return client("openai")


@pytest.fixture
def asked(openai: Any, server: Server) -> Iterator[Any]:
    """openai's client of the server."""
    with openai.OpenAI(base_url=f"{server.serving.url}/v1", api_key="any") as made:
        yield made


@pytest.fixture
def anthropic(client: Import, server: Server) -> Iterator[Any]:
    """anthropic's client of the server."""
    with client("anthropic").Anthropic(base_url=server.serving.url, api_key="any") as made:
        yield made


class TestOpenAI:
    HOW = {"model": "smollm2", "seed": 5, "max_tokens": 12}  # noqa: RUF012
    CHAT = {**HOW, "messages": MESSAGES}  # noqa: RUF012

    def test_models_are_listed(self, asked: Any) -> None:
        (model,) = asked.models.list().data
        assert (model.id, model.object, model.owned_by) == ("smollm2", "model", "pyflow")
        assert asked.models.retrieve("smollm2") == model

    def test_streams_say_what_whole_answers_say(self, asked: Any) -> None:
        reports = {"logprobs": True, "top_logprobs": 2}
        whole = asked.chat.completions.create(**self.CHAT, **reports)
        chunks = [
            *asked.chat.completions.create(
                **self.CHAT, **reports, stream=True, stream_options={"include_usage": True}
            )
        ]
        (choice,), parts = whole.choices, [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert parts[0].delta.role == choice.message.role == "assistant"
        assert "".join(p.delta.content or "" for p in parts) == choice.message.content
        assert parts[-1].finish_reason == choice.finish_reason == "length"
        found = [each for p in parts if p.logprobs for each in p.logprobs.content]
        assert found == choice.logprobs.content
        assert (len(found), len(found[0].top_logprobs)) == (12, 2)
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens

    def test_the_stream_helper_takes_three_choices(self, asked: Any) -> None:
        # Answers that end: the helper raises for those that are cut off.
        how = {**self.CHAT, "n": 3, "extra_body": {"structured_outputs": {"regex": "[a-z]{4,9}"}}}
        whole = asked.chat.completions.create(**how)
        with asked.chat.completions.stream(**how) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        texts = [choice.message.content for choice in final.choices]
        assert texts == [choice.message.content for choice in whole.choices]
        assert len({*texts}) == 3

    def test_parse_gives_what_the_schema_says(
        self, asked: Any, openai: Any, client: Import
    ) -> None:
        made = client("pydantic").create_model
        inner = made("Inner", number=(int | None, ...))
        outer = made("Outer", sure=(bool, ...), parts=(inner | bool, ...))
        how = {**self.CHAT, "max_tokens": 60}
        parsed = asked.chat.completions.parse(**how, response_format=outer).choices[0].message
        assert isinstance(parsed.parsed, outer)
        with asked.chat.completions.stream(**how, response_format=outer) as stream:
            streamed = stream.get_final_completion().choices[0].message
        assert streamed.parsed == parsed.parsed
        with pytest.raises(openai.LengthFinishReasonError):
            asked.chat.completions.parse(**{**how, "max_tokens": 2}, response_format=outer)

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "find"}])
    def test_tools_are_called(self, asked: Any, smollm2: Model, choice: Any) -> None:
        function = {"name": "find", "parameters": PLACE, "strict": True}
        if choice != "required":
            choice = {"type": "function", "function": {"name": "find"}}
        how = {**self.CHAT, "max_tokens": 60, "tool_choice": choice}
        how["tools"] = [{"type": "function", "function": function}]
        with template_with_tools(smollm2):
            whole = asked.chat.completions.create(**how).choices[0]
            with asked.chat.completions.stream(**how) as stream:
                streamed = stream.get_final_completion().choices[0]
            calls = whole.message.tool_calls
            answer = {"role": "tool", "tool_call_id": calls[0].id, "content": "It is there."}
            turns = [*MESSAGES, whole.message.to_dict(), answer]
            again = asked.chat.completions.create(**{**how, "messages": turns})
        assert whole.finish_reason == streamed.finish_reason == "tool_calls"
        assert [json.loads(call.function.arguments)["city"] in "Paris Rome" for call in calls]
        found = [call.function.arguments for call in streamed.message.tool_calls]
        assert found == [call.function.arguments for call in calls]
        assert again.choices[0].message.tool_calls

    def test_completions_echo_and_report(self, asked: Any) -> None:
        how = {**self.HOW, "prompt": ["One, two,", "Red and"], "logprobs": 2}
        first, second = asked.completions.create(**how, echo=True).choices
        assert (first.text[:9], second.text[:7]) == ("One, two,", "Red and")
        assert first.logprobs.token_logprobs[0] is None
        assert len(first.logprobs.tokens) == len(first.logprobs.text_offset)
        assert "".join(first.logprobs.tokens) == first.text
        whole = asked.completions.create(**how).choices
        chunks = [chunk.choices[0] for chunk in asked.completions.create(**how, stream=True)]
        for choice in whole:
            parts = [chunk for chunk in chunks if chunk.index == choice.index]
            assert "".join(part.text for part in parts) == choice.text
            tops = [top for p in parts if p.logprobs for top in p.logprobs.top_logprobs]
            assert tops == choice.logprobs.top_logprobs

    def test_embeddings_come_as_numbers_and_as_base64(self, asked: Any, server: Server) -> None:
        # The client asks for base64 by itself, and decodes it.
        found = asked.embeddings.create(model="smollm2", input=["a", "b c"]).data
        plain = server.post("/v1/embeddings", input=["a", "b c"])["data"]
        for ours, theirs in zip(plain, found, strict=True):
            np.testing.assert_array_equal(
                np.float32(theirs.embedding), np.float32(ours["embedding"])
            )
        raw = asked.embeddings.create(model="smollm2", input="a", encoding_format="base64").data[0]
        vector = np.frombuffer(base64.b64decode(raw.embedding), "<f4")
        np.testing.assert_array_equal(vector, np.float32(plain[0]["embedding"]))
        short = asked.embeddings.create(model="smollm2", input="a", dimensions=7).data[0]
        assert len(short.embedding) == 7

    def test_responses_stream_and_parse(self, asked: Any, client: Import) -> None:
        how = {"model": "smollm2", "input": "Name three colours.", "extra_body": {"seed": 5}}
        whole = asked.responses.create(**how, max_output_tokens=12)
        assert (whole.status, whole.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        with asked.responses.stream(**how, max_output_tokens=12) as stream:
            kinds = [event.type for event in stream]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.incomplete"
        events = asked.responses.create(**how, max_output_tokens=12, stream=True)
        texts = [each.delta for each in events if each.type == "response.output_text.delta"]
        assert "".join(texts) == whole.output_text
        place = client("pydantic").create_model("Place", sure=(bool, ...))
        parsed = asked.responses.parse(**how, text_format=place, max_output_tokens=60)
        assert isinstance(parsed.output_parsed, place)
        with asked.responses.stream(**how, text_format=place, max_output_tokens=60) as stream:
            assert stream.get_final_response().output_parsed == parsed.output_parsed

    def test_errors_have_their_classes(self, asked: Any, openai: Any) -> None:
        def create(**how: Any) -> Any:
            return asked.chat.completions.create(**{**self.CHAT, **how})

        with pytest.raises(openai.BadRequestError) as refused:
            create(temperature=-1)
        assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as refused:
            create(messages=[{"role": "user", "content": "x " * 1000}])
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="gpt-4")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            asked.embeddings.create(model="smollm2", input=[[1, 2, 3]])


def test_a_wrong_key_is_told_as_such(openai: Any, client: Import, slow: Any) -> None:
    server, _ = slow(keys=("right",))
    url = server.serving.url
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as wrong,
        pytest.raises(openai.AuthenticationError),
    ):
        wrong.models.list()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="right") as right:
        assert [model.id for model in right.models.list()] == ["fake"]
    library = client("anthropic")
    with (
        library.Anthropic(base_url=url, api_key="wrong") as other,
        pytest.raises(library.AuthenticationError),
    ):
        other.messages.create(model="fake", max_tokens=1, messages=MESSAGES)


def test_a_client_waits_as_long_as_a_full_queue_says(
    openai: Any, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, steps = slow(n_ctx=64, n_cells=64)
    waits: list[float] = []

    def ask(client: Any, text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="fake", max_tokens=2, messages=messages)

    with openai.OpenAI(base_url=f"{server.serving.url}/v1", api_key="any") as made:
        hasty = made.with_options(max_retries=0)
        threads = [
            threading.Thread(target=ask, args=(hasty, text)) for text in ["x", *["x" * 55] * 4]
        ]
        threads[0].start()
        steps.begun.acquire()
        for thread in threads[1:]:
            thread.start()
        until(server, requests_queued=5)

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            steps.allow(1 << 20)
            for thread in threads:
                thread.join(60)

        monkeypatch.setattr("openai._base_client.time.sleep", sleep)
        found = ask(made, "x" * 55)
    assert found.usage.completion_tokens == 2
    assert len(waits) == 1
    assert 1 <= waits[0] <= 120


class TestAnthropic:
    HOW = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 12}  # noqa: RUF012

    def test_streams_say_what_whole_messages_say(self, anthropic: Any) -> None:
        greedy = {"temperature": 0, "system": "Be brief."}
        whole = anthropic.messages.create(**self.HOW, extra_body=greedy)
        with anthropic.messages.stream(**self.HOW, extra_body=greedy) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert whole.stop_reason == final.stop_reason == "max_tokens"
        assert whole.usage.output_tokens == final.usage.output_tokens == 12

    def test_answers_keep_to_a_schema(self, anthropic: Any) -> None:
        held = {"format": {"type": "json_schema", "schema": PLACE}}
        found = anthropic.messages.create(**{**self.HOW, "max_tokens": 60}, output_config=held)
        assert json.loads(found.content[0].text)["city"] in ("Paris", "Rome")

    def test_tokens_are_counted(self, anthropic: Any) -> None:
        counted = anthropic.messages.count_tokens(model="smollm2", messages=MESSAGES)
        usage = anthropic.messages.create(**self.HOW).usage
        n_cached = usage.cache_read_input_tokens or 0
        assert counted.input_tokens == usage.input_tokens + n_cached

    def test_tools_are_called(self, anthropic: Any, smollm2: Model) -> None:
        tool = {"name": "find", "input_schema": PLACE}
        how = {**self.HOW, "max_tokens": 60, "tools": [tool], "tool_choice": {"type": "any"}}
        with template_with_tools(smollm2):
            whole = anthropic.messages.create(**how, extra_body={"seed": 2})
            with anthropic.messages.stream(**how, extra_body={"seed": 2}) as stream:
                final = stream.get_final_message()
        assert whole.stop_reason == final.stop_reason == "tool_use"
        inputs = [part.input for part in whole.content if part.type == "tool_use"]
        assert inputs
        assert [part.input for part in final.content if part.type == "tool_use"] == inputs
        assert all(each["city"] in ("Paris", "Rome") for each in inputs)

    def test_errors_have_their_classes(self, anthropic: Any, client: Import) -> None:
        library = client("anthropic")
        with pytest.raises(library.BadRequestError):
            anthropic.messages.create(**{**self.HOW, "messages": []})
        with pytest.raises(library.NotFoundError):
            anthropic.messages.create(**{**self.HOW, "model": "claude"})


class TestLangChain:
    def test_chats_and_streams(self, client: Import, server: Server) -> None:
        library = client("langchain_openai")
        chat = library.ChatOpenAI(
            base_url=f"{server.serving.url}/v1",
            api_key="any",
            model="smollm2",
            max_tokens=12,
            seed=5,
        )
        whole = chat.invoke("Name three colours.")
        assert whole.usage_metadata["output_tokens"] == 12  # max_completion_tokens is obeyed
        streamed = [*chat.stream("Name three colours.")]
        assert "".join(chunk.content for chunk in streamed) == whole.content
        held = chat.model_copy(update={"max_tokens": 60}).with_structured_output(
            {"title": "place", **PLACE}, method="json_schema"
        )
        assert held.invoke("Where is the Eiffel Tower?")["city"] in ("Paris", "Rome")

    def test_embeds_text_but_not_ids_of_another_tokenizer(
        self, client: Import, server: Server
    ) -> None:
        library = client("langchain_openai")
        how = {"base_url": f"{server.serving.url}/v1", "api_key": "any", "model": "smollm2"}
        embeddings = library.OpenAIEmbeddings(**how, check_embedding_ctx_length=False)
        found = embeddings.embed_documents(["a", "b c"])
        plain = server.post("/v1/embeddings", input=["a", "b c"])["data"]
        np.testing.assert_array_equal(
            np.float32(found), np.float32([each["embedding"] for each in plain])
        )
        np.testing.assert_array_equal(embeddings.embed_query("a"), found[0])
