"""The options that hold an answer to a schema or a grammar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.cli.options import inputs
from pyflow.cli.options.groups import grouped, option
from pyflow.cli.options.rules import Rule
from pyflow.errors import ConstraintError

if TYPE_CHECKING:
    from pyflow.constrain import Constraint

_SUFFIXES = (".lark", ".gbnf", ".regex")


def _constraint(*, json_schema: str | None, grammar: str | None) -> Constraint | None:
    """UsageError names the option and what is refused."""
    from pyflow.constrain import Constraint

    try:
        if json_schema is not None:
            is_text = json_schema.lstrip().startswith("{")
            text = inputs.argument(json_schema, "--json-schema") if is_text else None
            return Constraint.json_schema(text or inputs.read(json_schema))
        if grammar is not None:
            return _of_file(grammar)
    except ConstraintError as error:
        name = "--json-schema" if grammar is None else "--grammar"
        raise click.UsageError(f"{name}: {error}") from None
    return None


def _of_file(path: str) -> Constraint:
    from pyflow.constrain import Constraint

    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(
            f"--grammar: expected a file ending in {', '.join(_SUFFIXES)}, found {path}"
        )
    text = inputs.read(path)
    if suffix == ".lark":
        return Constraint.lark(text)
    if suffix == ".gbnf":
        return Constraint.gbnf(text)
    return Constraint.regex(text.removesuffix("\n"))


constraint = grouped(
    "constraint",
    _constraint,
    option(
        "--json-schema",
        "Write JSON that this schema allows.",
        metavar="FILE|TEXT",
        short="Write JSON that this schema allows",
    ),
    option(
        "--grammar",
        "Write a text of this grammar; the file ends in .lark, .gbnf or .regex.",
        metavar="FILE",
    ),
    rules=[
        Rule("--json-schema", forbids=["--grammar"]),
        *(
            Rule(name, forbids=["--pipeline"], advice="stages draw without grammars")
            for name in ("--json-schema", "--grammar")
        ),
    ],
    topic="sampling",
)
