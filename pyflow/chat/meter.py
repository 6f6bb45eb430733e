"""What a template may spend: steps, characters and time, and the size of its values."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from jinja2 import TemplateError, nodes
from jinja2.visitor import NodeTransformer

T = TypeVar("T")

# Real templates take a few dozen steps a message and a few milliseconds in all.
_MAX_STEPS = 1 << 20
_MAX_SECONDS = 5.0
# Characters of a text or items of a container with all that it contains; also of all output.
MAX_SIZE = 1 << 26


class BudgetError(TemplateError):
    """The template does too much."""


@dataclass(slots=True)
class _Budget:
    steps: int = _MAX_STEPS
    chars: int = MAX_SIZE
    deadline: float = field(default_factory=lambda: time.monotonic() + _MAX_SECONDS)


_budget: ContextVar[_Budget] = ContextVar("_budget")


@contextlib.contextmanager
def metered() -> Iterator[None]:
    """A fresh budget for what runs inside."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def spend(chars: int = 0) -> None:
    """Charges one step and `chars` characters of output; BudgetError when there is nothing left."""
    budget = _budget.get()
    budget.steps -= 1
    budget.chars -= chars
    if budget.steps < 0:
        raise BudgetError(f"takes more than {_MAX_STEPS} steps")
    if budget.chars < 0:
        raise BudgetError(f"writes more than {MAX_SIZE} characters")
    if time.monotonic() > budget.deadline:
        raise BudgetError(f"takes longer than {_MAX_SECONDS:.0f} s")


def check_length(length: int) -> None:
    """BudgetError when a value of this length is too large."""
    if length > MAX_SIZE:
        raise BudgetError(f"makes a value of size {length}")


def check_size(value: T) -> T:
    """`value`, unless it is too large.

    A container counts with everything in it, as often as it is in it: x = [x, x], done thirty
    times, is small in memory and 2**30 items long when it is printed or compared.
    """
    if isinstance(value, str):
        check_length(len(value))
    elif isinstance(value, (list, tuple, dict)):
        pending: list[object] = [value]
        size = 0
        while pending:
            item = pending.pop()
            children = [*item, *item.values()] if isinstance(item, dict) else item
            if isinstance(children, (list, tuple)):
                size += 1 + len(children)
                if size > MAX_SIZE >> 6:  # an item takes about as much memory as 64 characters
                    raise BudgetError("makes a very large or deep list")
                pending += [c for c in children if isinstance(c, (list, tuple, dict))]
    return value


def insert_charges(tree: nodes.Template) -> nodes.Template:
    """The same template, charging its loops and macros and checking what it puts together."""
    metered_tree = _Charges().visit(tree)
    assert isinstance(metered_tree, nodes.Template)
    return metered_tree


def _apply(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(
        node, name, [], [], None, None, lineno=node.lineno, environment=node.environment
    )


class _Charges(NodeTransformer):
    def _body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        # Plain text costs nothing to write in the template; here it counts each time it is written.
        chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        amount = nodes.Const(chars, lineno=node.lineno, environment=node.environment)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_apply("charge", amount), lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _body

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return _apply("concatenate", parts)

    def _container(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node, nodes.Tuple) and node.ctx != "load":
            return node  # the names on the left of an assignment
        return _apply("checked", node)

    visit_List = visit_Tuple = visit_Dict = _container
