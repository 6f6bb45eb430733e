"""A Jinja environment for untrusted templates.

Jinja's immutable sandbox keeps a template away from Python's internals and from the caller's data.
It does not keep it from running forever or from filling memory. So every loop iteration, macro,
call and filter is charged to a budget (see meter.py), and no operation may make an outsized value.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from pyflow.chat.meter import (
    BudgetError,
    check_length,
    check_size,
    insert_charges,
    metered,
    size_of,
    spend,
)

# The largest templates in use have 40 kB.
_MAX_TEMPLATE = 1 << 18
_MAX_INT = 1 << 63
# Their arguments say how long a result is to be.
_WIDE = frozenset(("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "zfill"))
# No chat template needs these, and their cost is not in the sizes of their operands.
_REMOVED_FILTERS = frozenset(
    ("center", "filesizeformat", "format", "pprint", "random", "striptags", "urlize", "wordwrap")
)
_REMOVED_METHODS = frozenset(("format_map", "translate"))


class RefusedError(TemplateError):
    """The template called raise_exception: it does not take these messages."""


def compile_template(text: str) -> Template:
    """The template in `text`; TemplateError when it is not one."""
    if len(text) > _MAX_TEMPLATE:
        raise BudgetError(f"has {len(text)} characters, more than {_MAX_TEMPLATE}")
    environment = _Environment()
    code = environment.compile(insert_charges(environment.parse(text)))
    return environment.template_class.from_code(environment, code, environment.globals)


def variables_of(text: str) -> frozenset[str]:
    """The names that the template in `text` looks up, but for functions and its own."""
    return frozenset(meta.find_undeclared_variables(_Environment().parse(text)))


def render(template: Template, variables: Mapping[str, object]) -> str:
    """The text that `template` makes of `variables`, within the budget of one rendering."""
    with metered():
        return check_size(template.render(variables))


class _Namespace(Namespace):
    """Printing one would print all that it holds, uncounted."""

    def __repr__(self) -> str:
        return "namespace"


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Folding constants would run filters while compiling, outside of any budget.
            optimized=False,
            finalize=_count_output,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.globals = dict(FUNCTIONS)
        self.filters["tojson"] = _tojson
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = _bounded(name, function)
        self.filters |= {"charge": _charge, "concatenate": _concatenate, "checked": _checked}

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        spend()
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, str):
            if __obj.__name__ in _REMOVED_METHODS:
                raise BudgetError(f"calls {__obj.__name__}")
            args = tuple(_check_operands(__obj.__name__, [receiver, *args], kwargs)[1:])
        return check_size(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, (str, list, tuple)):
                    check_length(len(value) * times)
        if operator == "**" and not (abs(left) <= 1024 and abs(right) <= 6):
            raise BudgetError("computes a large power")
        if operator == "%" and isinstance(left, str):
            _check_format(left, "%", right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > _MAX_INT:
            raise BudgetError("computes a large number")
        return check_size(result)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapper = super().wrap_str_format(value)
        if wrapper is None:
            return None

        def wrapped(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, "{", [args, kwargs])
            return wrapper(*args, **kwargs)

        return wrapped


class _Generation(Extension):
    """{% generation %} marks what the model said, for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        spend()
        return check_size(function(*_check_operands(name, list(args), kwargs), **kwargs))

    return bounded


def _check_operands(name: str, args: list[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """`args` of a filter or a method of str, refused where the result would be outsized."""
    if name in _WIDE:
        # At worst every character of a text becomes a line of that width.
        sizes = [x for x in (*args, *kwargs.values()) if isinstance(x, (int, str))]
        check_length(math.prod(max(1, x if isinstance(x, int) else len(x)) for x in sizes))
    texts = [arg for arg in args if isinstance(arg, str)]
    texts += [kwargs[key] for key in ("old", "new", "d") if isinstance(kwargs.get(key), str)]
    if name == "replace" and len(texts) >= 3:
        check_length(len(texts[2]) * (texts[0].count(texts[1]) + 1))
    if name == "join":
        if len(texts) >= 2:  # the characters of one are joined by the other
            check_length(len(texts[0]) * len(texts[1]))
        separator = max(map(len, texts), default=0)
        return [
            _counted(arg, separator) if isinstance(arg, Iterable) and arg not in texts else arg
            for arg in args
        ]
    return args


def _check_format(text: str, mark: str, operands: object) -> None:
    """BudgetError where formatting may be outsized: every mark could stand for all operands."""
    if re.search(r"[0-9]{4}|\*|\{[^}]*\{", text):
        raise BudgetError("formats too wide a text")
    check_length(len(text) + text.count(mark) * (1000 + size_of(operands)))


def _counted(items: Iterable[Any], separator: int) -> Iterator[Any]:
    size = 0
    for item in items:
        size += separator + (len(item) if isinstance(item, str) else 1)
        check_length(size)
        yield item


@pass_context
def _charge(_: Context, chars: int) -> str:
    spend(chars)
    return ""


@pass_context
def _checked(_: Context, value: Any) -> Any:
    spend()
    return check_size(value)


@pass_context
def _concatenate(_: Context, parts: list[Any]) -> str:
    spend()
    return "".join(_counted([str(check_size(part)) for part in parts], 0))


@pass_context
def _count_output(_: Context, value: Any) -> Any:
    text = value if isinstance(value, (str, Undefined)) else str(check_size(value))
    if not isinstance(text, Undefined):
        spend(len(text))
    return text


def _raise_exception(message: str) -> str:
    raise RefusedError(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 64 or re.search(r"%[^%A-Za-z]*[0-9]{2}", pattern):
        raise BudgetError("formats a date too wide")
    return datetime.datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: Jinja's own would escape <, > and & for HTML."""
    if len(indent) > 64 if isinstance(indent, str) else abs(indent or 0) > 64:
        raise BudgetError("indents too far")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    # Piece by piece, as indentation repeats at every depth.
    return "".join(_counted(encoder.iterencode(value), 0))


FUNCTIONS: Mapping[str, object] = {
    "dict": dict,
    "namespace": _Namespace,
    "raise_exception": _raise_exception,
    "range": safe_range,
    "strftime_now": _strftime_now,
}
"""What every template can call."""
