"""Options that a command receives together, as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pyflow.cli.options.rules import Rule, check
from pyflow.cli.options.topics import TopicOption, name_topic

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]
"""A click option, or a group of them."""


def grouped(
    name: str,
    make: Callable[..., object],
    *options: Option,
    rules: Sequence[Rule] = (),
    topic: str = "",
) -> Callable[[F], F]:
    """Adds options to a command, which receives `name=make(**values)` in their place.

    Options may be groups themselves. topic: the topic of help that lists those without one.
    UsageError: the options break a rule.
    """
    own = frozenset(map(_name, options))

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            check(rules)
            made = make(**{key: values.pop(key) for key in own})
            return function(*args, **{name: made}, **values)

        before = len(getattr(wrapper, "__click_params__", ()))
        for option in reversed(options):
            wrapper = option(wrapper)
        name_topic(getattr(wrapper, "__click_params__", ())[before:], topic)
        return wrapper  # type: ignore[return-value]

    decorate.group_name = name  # type: ignore[attr-defined]
    return decorate


def _name(option: Option) -> str:
    """The parameter that a command receives for an option."""
    name: str | None = getattr(option, "group_name", None)
    if name is None:

        def probe() -> None: ...

        option(probe)
        (param,) = probe.__click_params__  # type: ignore[attr-defined]
        name = param.name
    assert name is not None
    return name


def ruled(*rules: Rule) -> Callable[[F], F]:
    """Checks rules before the command runs."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            check(rules)
            return function(*args, **values)

        return wrapper  # type: ignore[return-value]

    return decorate


def output(*forms: str) -> Callable[[F], F]:
    """-o with these forms, the first as the default, and --json; the command gets `output`."""

    def form(output: str, as_json: bool) -> str:
        return "json" if as_json else output

    return grouped(
        "output",
        form,
        option("-o --output", "Form of the result.", type=click.Choice(forms), default=forms[0]),
        flag("--json as_json", "The same as -o json."),
        rules=[Rule("--json", forbids=[f"-o {form}" for form in forms if form != "json"])],
    )


def option(names: str, text: str, **how: Any) -> Option:
    """A click option: `option("-t --threads", "Threads to compute with.", type=int)`.

    how: of click.option and of `TopicOption`.
    """
    return click.option(*names.split(), help=text, cls=TopicOption, **how)


def flag(names: str, text: str, short: str = "") -> Option:
    return option(names, text, is_flag=True, short=short)


as_json = flag("--json as_json", "Print one JSON object.", "Print one JSON object")
