"""The budget of a template: steps, characters, time, and the size of its values."""

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
# Characters of a text, or of all texts in a container, where an item counts as _ITEM more; also of
# all output. The longest contexts here have 2**17 tokens, and few texts 16 characters a token.
MAX_SIZE = 1 << 21
_ITEM = 64  # about the memory that an item takes
# Characters of all values ever made; bounds memory even if the template keeps all of them.
_MAX_MADE = 1 << 27


class BudgetError(TemplateError):
    """The template exceeds its budget."""


@dataclass(slots=True)
class _Budget:
    steps: int = _MAX_STEPS
    chars: int = MAX_SIZE
    made: int = _MAX_MADE
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
    if budget.made < 0:
        raise BudgetError(f"makes values of more than {_MAX_MADE} characters")
    if time.monotonic() > budget.deadline:
        raise BudgetError(f"takes longer than {_MAX_SECONDS:.0f} s")


def check_length(length: int) -> None:
    """BudgetError when a value of this length is too large."""
    if length > MAX_SIZE:
        raise BudgetError(f"makes a value of size {length}")


def size_of(value: object) -> int:
    """Characters of a text; of a container those in it and its items, as often as they are in it.

    x = [x, x], done thirty times, is small in memory and 2**30 items long when it is printed or
    compared: counting ends, with BudgetError, beyond the largest size allowed.
    """
    if isinstance(value, str):
        return len(value)
    size = 0
    pending = [value]
    while pending:
        item = pending.pop()
        children = [*item, *item.values()] if isinstance(item, dict) else item
        if isinstance(children, (list, tuple)):
            size += _ITEM * (1 + len(children))
            size += sum(len(child) for child in children if isinstance(child, str))
            check_length(size)
            pending += [c for c in children if isinstance(c, (list, tuple, dict))]
    return size


def check_size(value: T) -> T:
    """`value`, just made, unless it is too large by itself or with all that was made before."""
    check_length(size_of(value))
    if isinstance(value, (str, list, tuple, dict)):
        _budget.get().made -= len(value)
        spend()
    return value


def insert_charges(tree: nodes.Template) -> nodes.Template:
    """The template with charges for loops and macros, and checks of concatenated values."""
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

    def visit_ScopedEvalContextModifier(self, _: nodes.ScopedEvalContextModifier) -> nodes.Node:
        raise BudgetError("turns on autoescape, which is for HTML")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _apply("checked", node) if isinstance(node.arg, nodes.Slice) else node

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
