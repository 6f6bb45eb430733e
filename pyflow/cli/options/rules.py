"""Which options go together, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click
from click.core import ParameterSource


@dataclass(frozen=True, slots=True)
class Rule:
    """If all of the options in `given` are given, so is one of `needs` and none of `forbids`.

    Options are written as on the command line: `--spec` is given in any form, `--spec draft` with
    that value. given: several are separated by " and ".
    """

    given: str
    needs: Sequence[str] = ()
    forbids: Sequence[str] = ()
    advice: str = ""


def check(rules: Iterable[Rule]) -> None:
    """UsageError for the first rule that the current command line breaks."""
    found = given()
    for rule in rules:
        if not found.issuperset(rule.given.split(" and ")):
            continue
        advice = f"; {rule.advice}" if rule.advice else ""
        if rule.needs and found.isdisjoint(rule.needs):
            raise click.UsageError(f"{rule.given} needs {' or '.join(rule.needs)}{advice}")
        if wrong := next((option for option in rule.forbids if option in found), None):
            raise click.UsageError(f"{rule.given} cannot be used with {wrong}{advice}")


def given() -> set[str]:
    """The options of the current command line, by all their names, with and without values."""
    context = click.get_current_context()
    found: set[str] = set()
    for param in context.command.params:
        if is_given(str(param.name)):
            value = context.params.get(str(param.name))
            values = value.split(",") if isinstance(value, str) else value
            values = values if isinstance(values, (list, tuple)) else ()
            opts = param.secondary_opts if value is False else param.opts
            found.update(opts)
            found.update(f"{option} {each}" for option in opts for each in values)
    return found


def is_given(name: str) -> bool:
    """Whether the command line has the option that is passed as this parameter."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT)
