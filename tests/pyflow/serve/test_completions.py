"""Texts continued over HTTP: prompts of any form, as the model alone continues them."""

from __future__ import annotations

from typing import Any

import pytest

from pyflow.model import Model
from pyflow.sampling import SamplingParams

from .conftest import Server

PATH = "/v1/completions"
TEXTS = ["The capital of France is", "One, two, three,", "The capital of France is"]


def test_prompts_and_copies_draw_as_the_model_alone_does(server: Server, smollm2: Model) -> None:
    found = server.post(PATH, prompt=TEXTS, n=2, seed=11, max_tokens=6)
    alone = smollm2.generate(
        [TEXTS[0], TEXTS[0], TEXTS[1], TEXTS[1], TEXTS[0], TEXTS[0]],
        sampling=SamplingParams(seed=11),
        n_predict=6,
    )
    assert [choice["text"] for choice in found["choices"]] == [each.text for each in alone]
    assert [choice["index"] for choice in found["choices"]] == [*range(6)]
    assert found["usage"]["prompt_tokens"] == sum(len(each.prompt_tokens) for each in alone[::2])


def test_token_ids_are_taken_as_they_are(server: Server, smollm2: Model) -> None:
    ids = smollm2.tokenizer.encode(TEXTS[1])
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
    texts = [
        server.post(PATH, prompt=prompt, **body)["choices"][0]["text"]
        for prompt in (TEXTS[1], ids, [ids])
    ]
    assert len(set(texts)) == 1


def test_sixteen_tokens_are_the_default(server: Server) -> None:
    found = server.post(PATH, prompt=TEXTS[1], logit_bias={"0": -100, "2": -100})
    assert found["usage"]["completion_tokens"] == 16
    assert found["choices"][0]["finish_reason"] == "length"


def test_streams_join_to_the_whole(server: Server) -> None:
    body: dict[str, Any] = {"prompt": TEXTS[:2], "seed": 4, "max_tokens": 8}
    whole = server.post(PATH, **body, logprobs=2)["choices"]
    *frames, done = server.stream(PATH, **body, logprobs=2)
    assert done == "[DONE]"
    for choice in whole:
        parts = [f["choices"][0] for f in frames if f["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        for key, values in choice["logprobs"].items():
            joined = [x for part in parts for x in (part["logprobs"] or {key: []})[key]]
            assert joined == values
    echoed = server.stream(PATH, **body, echo=True)[:-1]
    first = "".join(f["choices"][0]["text"] for f in echoed if f["choices"][0]["index"] == 0)
    assert first == TEXTS[0] + whole[0]["text"]


def test_offsets_count_the_characters_of_the_text(server: Server) -> None:
    choice = server.post(
        PATH, prompt="caf\u00e9 \u4f60\u597d", temperature=0, max_tokens=8, logprobs=0
    )["choices"][0]
    report = choice["logprobs"]
    ends = [*report["text_offset"][1:], len(choice["text"])]
    for token, begin, end in zip(report["tokens"], report["text_offset"], ends, strict=True):
        assert token.startswith("bytes:") or choice["text"][begin:end] == token
    assert all(len(top) == 1 for top in report["top_logprobs"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": ["a", "b"], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "echo": True, "stream": True, "logprobs": 1}, "echo"),
    ],
    ids=str,
)
def test_what_cannot_be_done_names_its_field(
    server: Server, body: dict[str, Any], param: str
) -> None:
    status, error = server.error(PATH, **body)
    assert (status, error["param"]) == (400, param)


def test_tokens_go_there_and_back(server: Server, smollm2: Model) -> None:
    text = "<|im_end|> ends a turn"
    ids = server.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
    assert ids == smollm2.tokenizer.encode(text, add_special=False, parse_special=True)
    assert server.post("/detokenize", tokens=ids)["prompt"] == text
    info = server.get("/tokenizer_info")
    eos = server.post("/tokenize", prompt=info["eos_token"], add_special_tokens=False)["tokens"]
    assert eos == [smollm2.tokenizer.eos_id]


def test_a_template_can_be_looked_at(server: Server, smollm2: Model) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert smollm2.chat_template is not None
    text = smollm2.chat_template.render(messages)
    assert server.post("/apply-template", messages=messages)["prompt"] == text
    ids = server.post("/tokenize", messages=messages)["tokens"]
    assert server.post("/detokenize", tokens=ids)["content"] == text
