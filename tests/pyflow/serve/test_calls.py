"""Calls are told from text, in whatever parts the text comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyflow.chat.tools import CallFormat, CallReader, ToolCall, call_format
from pyflow.errors import UnsupportedError

HERMES = call_format("... <tool_call> ...", source="a template")
MISTRAL = call_format("... [TOOL_CALLS] ...", source="a template")
LLAMA = call_format('{"name": ..., "parameters": dictionary of argument name}', source="one")
FORMATS = [HERMES, MISTRAL, LLAMA]
ARGUMENTS = st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()), max_size=3)


def read(form: CallFormat, parts: list[str], *, shown: bool = True) -> list[str | ToolCall]:
    """All that comes out, texts joined."""
    reader, out = CallReader(form, lambda _: not shown), list[str | ToolCall]()
    for i, part in enumerate(parts):
        for piece in reader.feed(part, is_last=i == len(parts) - 1):
            if isinstance(piece, str) and out and isinstance(out[-1], str):
                out[-1] += piece
            else:
                out.append(piece)
    return out


@given(
    form=st.sampled_from(FORMATS),
    before=st.text(max_size=10),
    arguments=st.lists(ARGUMENTS, min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    shown=st.booleans(),
)
def test_calls_are_found_in_any_parts(
    form: CallFormat,
    before: str,
    arguments: list[dict[str, object]],
    cuts: list[int],
    shown: bool,
) -> None:
    shown = shown or form is LLAMA  # its trigger is text in every vocabulary
    before = before.replace(form.trigger, "")
    calls = [ToolCall("find_it", json.dumps(each, ensure_ascii=False)) for each in arguments]
    trigger = form.trigger if shown else ""
    begin = trigger + form.begin("find_it").removeprefix(form.trigger)
    text = before + "\n".join(begin + call.arguments + form.end for call in calls)
    at = sorted({min(cut, len(text)) for cut in cuts})
    parts = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert read(form, parts, shown=shown) == [*([before] if before else []), *calls]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.trigger)
def test_a_call_that_is_cut_off_stays_text(form: CallFormat) -> None:
    text = form.begin("f") + '{"a": "}'
    assert read(form, ["so ", *text]) == ["so " + text]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.trigger)
def test_space_after_a_call_is_no_text(form: CallFormat) -> None:
    call = form.begin("f") + "{}" + form.end
    found = read(form, [*call, "\n", *call, " ", " and"])
    assert found == [ToolCall("f", "{}"), ToolCall("f", "{}"), "and"]


def test_beginnings_of_calls_wait_and_come_out_as_text() -> None:
    reader = CallReader(HERMES, lambda _: False)
    assert reader.feed("a <tool_") == ["a "]
    assert reader.feed("box> b") == ["<tool_box> b"]
    assert reader.feed("<tool_call>", is_last=True) == ["<tool_call>"]


def test_a_template_without_calls_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="plain"):
        call_format("{{ messages }}", source="plain")
