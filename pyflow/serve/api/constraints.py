"""Fields that hold an answer to a schema, a grammar or the calls of tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from pyflow.chat.tools import CallFormat, call_format
from pyflow.constrain import Call, Calls, Constraint
from pyflow.errors import PyflowError
from pyflow.serve.errors import bad_request, of_request
from pyflow.serve.models import Held, Served

_MAX_TOOLS = 128


class JsonSchema(msgspec.Struct):
    """What response_format holds an answer to."""

    schema: dict[str, Any]
    name: str = ""
    description: str = ""
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """As OpenAI's API has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Structured(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """As vLLM's API has it; one of these."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """GBNF."""
    lark: str | None = None


class Function(msgspec.Struct, omit_defaults=True):
    """What a model may call."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: Literal["function"]
    function: Function


class Named(msgspec.Struct):
    name: str


class Choice(msgspec.Struct):
    """The tool that the answer must call."""

    type: Literal["function"]
    function: Named


ToolChoice = Literal["none", "auto", "required"] | Choice


def of_format(wanted: ResponseFormat | None) -> Constraint | None:
    """ApiError: the schema is missing, or refused."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Constraint.json_object()
    if wanted.json_schema is None:
        raise bad_request(
            "response_format.json_schema.schema: expected a schema, found none", "response_format"
        )
    return Constraint.json_schema(wanted.json_schema.schema)


def of_structured(wanted: Structured | None) -> Constraint | None:
    """ApiError: several kinds at once, or none."""
    if wanted is None:
        return None
    given = msgspec.to_builtins(wanted)
    if len(given) != 1:
        raise bad_request(
            f"structured_outputs: expected one kind, found {', '.join(given) or 'none'}",
            "structured_outputs",
        )
    ((kind, source),) = given.items()
    makers = {
        "json": Constraint.json_schema,
        "regex": Constraint.regex,
        "choice": Constraint.choice,
        "grammar": Constraint.gbnf,
        "lark": Constraint.lark,
    }
    return makers[kind](source) if kind in makers else Constraint.json_object()


def chosen(
    wanted: ResponseFormat | None, structured: Structured | None, grammar: str | None
) -> Held | None:
    """What the answer is held to. ApiError: by two fields at once, or refused."""
    found: dict[str, Constraint | None] = {}
    name = "response_format"
    try:
        found[name] = of_format(wanted)
        name = "structured_outputs"
        found[name] = of_structured(structured)
        name = "grammar"
        found[name] = None if grammar is None else Constraint.gbnf(grammar)
    except PyflowError as error:
        raise of_request(error, name) from None
    given = [Held(name, each) for name, each in found.items() if each is not None]
    if len(given) > 1:
        names = " and ".join(each.field for each in given)
        raise bad_request(f"{names}: expected one of them", given[0].field)
    return given[0] if given else None


def of_tools(tools: list[Tool], choice: ToolChoice, form: CallFormat, *, many: bool = True) -> Held:
    """The answer is text with calls of these tools, or what `choice` says. ApiError: a tool has a
    schema that cannot be enforced, or is not there."""
    names = [tool.function.name for tool in tools]
    if len(tools) > _MAX_TOOLS or len(set(names)) < len(names):
        raise bad_request(f"tools: expected up to {_MAX_TOOLS} with names of their own", "tools")
    if isinstance(choice, Choice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not tools:
            raise bad_request(
                f"tool_choice: expected {' or '.join(names):.200}, "
                f"found {choice.function.name!r:.70}",
                "tool_choice",
            )
    calls = []
    for tool in tools:
        function = tool.function
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        try:
            found = Constraint.json_schema(function.parameters or schema)
        except PyflowError as error:
            raise bad_request(f"tools: {function.name}: {error}", "tools") from None
        assert isinstance(found.source, str)
        calls.append(Call(form.begin(function.name), found.source, form.end))
    many = many and not isinstance(choice, Choice)
    required = choice != "auto"
    made = Calls(form.trigger, tuple(calls), required=required, many=many)
    try:
        return Held("tools", Constraint("calls", made))
    except PyflowError as error:
        raise of_request(error, "tools") from None


def format_of(served: Served) -> CallFormat:
    """How the model spells calls. ApiError: nobody knows."""
    template = served.model.chat_template
    try:
        return call_format("" if template is None else template.text, source=served.name)
    except PyflowError as error:
        raise of_request(error, "tools") from None
