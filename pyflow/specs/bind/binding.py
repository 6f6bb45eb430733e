"""Binds roles to the tensors of one checkpoint: finds them, checks shapes, lists unused ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from pyflow.errors import SpecError
from pyflow.specs.block import Want
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.functions import ExpressionError, Value
from pyflow.specs.language.tensors import Entry, TensorSource
from pyflow.specs.language.values import Given, Whole, nearest
from pyflow.specs.parts import Ref, TensorRef
from pyflow.text import printable

_MAX_PROBLEMS = 200
_MAX_HINTS = 4
_MAX_GROUPS = 1 << 16
_ZEROS = -1  # where segments of zeros start
_CODES = "I8"  # of Marian: such matrices lie as rows of outputs, whatever others do
_SHOWN = 200


class Record(Protocol):
    """A row of a checkpoint's tensor table."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """kind: what is wrong with a tensor. role: where the model needs it. text: one line."""

    kind: Literal["missing", "shape", "unused", "type"]
    tensor: str
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a role is: in a step of a layer, in a stack, or in neither (both empty)."""

    stack: str = ""
    step: str = ""
    layer: int | None = None

    def __str__(self) -> str:
        parts = (self.stack, "" if self.layer is None else str(self.layer), self.step)
        return ".".join(part for part in parts if part)

    def role(self, name: str) -> str:
        return f"{self}.{name}" if self.stack else name


Bound = Ref | tuple[Ref, ...] | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a role needs, and the reference bound to it."""

    want: Want
    bound: Bound


class TooManyProblemsError(Exception):
    """There are more problems than are worth listing."""


@dataclass(slots=True)
class Binding:
    """places: a spec's entries by stack and step. used: names of tensors bound so far;
    turned: those that lie as rows of outputs, where the spec says transposed.
    asked: by place and role, in the order of binding."""

    places: Mapping[tuple[str, str], Mapping[str, Entry]]
    prefixes: Sequence[str]
    facts: Facts
    tensors: Mapping[str, Record]
    where: str
    used: set[str] = field(default_factory=set)
    turned: set[str] = field(default_factory=set)
    asked: dict[tuple[Place, str], Asked] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    prefix: str = ""

    def __post_init__(self) -> None:
        for prefix in self.prefixes or ("",):
            self.prefix = prefix
            for (_, step), entries in self.places.items():
                embed = entries.get("embed") if not step else None
                if embed is not None and any(
                    name in self.tensors for _, name in self._names(embed)
                ):
                    return
        self.prefix = self.prefixes[0] if self.prefixes else ""

    def find(self, place: Place, role: str) -> Record | None:
        """The tensor of a role, of any shape."""
        for entry in self._entries(place, role):
            for _, name in self._names(entry):
                if name in self.tensors:
                    return self.tensors[name]
        return None

    def bind(self, place: Place, wants: Mapping[str, Want]) -> dict[str, Any]:
        """References for the roles of one block; None for a role that is missing or not needed."""
        bound = {role: self._bind(place, role, wants) for role in wants}
        for role, ref in bound.items():
            self.asked[place, role] = Asked(wants[role], ref)
        return bound

    def target(self, place: Place, role: str, *, experts: bool) -> tuple[Entry, str] | None:
        """The entry and name under which a new file must have a role, to be read by this spec: the
        first alternative for layers with `experts`, or for layers without."""
        self.facts.layer = place.layer
        for entry in self._entries(place, role):
            for source, name in self._names(entry):
                if source.experts is experts and not source.pattern.per_expert:
                    return entry, name
        return None

    def expert_target(self, place: Place, role: str, expert: int) -> str | None:
        """The name of an expert's own tensor, where there is one for each."""
        self.facts.layer = place.layer
        for entry in self._entries(place, role):
            for source in entry.sources:
                if source.pattern.per_expert:
                    return self._expand(source, expert)
        return None

    def _bind(self, place: Place, role: str, wants: Mapping[str, Want]) -> Bound:
        want = wants[role]
        if want.need is False:
            return None
        tried: list[str] = []
        entries = list(self._entries(place, role))
        for entry in entries:
            for source, name in self._names(entry):
                if name in self.tensors:
                    return self._found(place, role, wants, entry, source)
                tried.append(name)
        if want.need is True:
            self._missing(place, role, tried)
        return None

    def _entries(self, place: Place, role: str) -> Iterator[Entry]:
        """Entries that hold a role. A bias without an entry is named after its weight."""
        entries = self.places.get((place.stack, place.step), {})
        explicit = [entry for entry in entries.values() if role in entry.roles]
        yield from explicit
        if explicit or not role.endswith("_bias"):
            return
        for entry in entries.values():
            if role.removesuffix("_bias") in entry.roles and (bias := entry.bias()) is not None:
                yield bias

    def _names(self, entry: Entry) -> Iterator[tuple[TensorSource, str]]:
        """The alternatives of an entry with their names; of experts the first one's."""
        for source in entry.sources:
            name = self._expand(source, 0)
            if name is not None:
                yield source, name

    def _expand(self, source: TensorSource, expert: int) -> str | None:
        try:
            return source.pattern.expand(_WithExpert(self.facts, expert), self.prefix)
        except UnresolvedError:
            return None
        except ExpressionError as error:
            raise SpecError(f"{source.where}: {source.pattern.text!r:.80}: {error}") from None

    def _missing(self, place: Place, role: str, tried: Sequence[str]) -> None:
        if not tried:
            self._problem("missing", "", place.role(role), "the spec names no tensor")
            return
        names = " or ".join(f"{name:.{_SHOWN}}" for name in tried[:4])
        self._problem("missing", tried[0], place.role(role), f"expected tensor {names}, found none")

    def _problem(
        self, kind: Literal["missing", "shape", "type"], tensor: str, role: str, text: str
    ) -> None:
        self.problems.append(Problem(kind, tensor, role, printable(f"{role}: {text}")))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise TooManyProblemsError

    def _found(
        self,
        place: Place,
        role: str,
        wants: Mapping[str, Want],
        entry: Entry,
        source: TensorSource,
    ) -> Bound:
        want = wants[role]
        if source.transposed and want.n_experts and not source.pattern.per_expert:
            return self._experts(place, role, wants, entry, source)
        if not source.pattern.per_expert:
            return self._cut(place, role, wants, entry, source, max(1, want.n_experts), 0)
        n = want.n_experts or want.n_heads
        if not n:
            raise SpecError(
                f"{source.where}: {source.pattern.text!r:.80}: {{j}} needs experts or heads"
            )
        wants = {**wants, role: replace(want, also=())}
        refs: list[Ref] = []
        for expert in range(n):
            name = self._expand(source, expert)
            if name not in self.tensors:
                self._missing(place, role, [str(name)])
                return None
            ref = self._cut(place, role, wants, entry, source, 1, expert)
            if ref is None:
                return None
            refs.append(ref)
        return tuple(refs)

    def _cut(
        self,
        place: Place,
        role: str,
        wants: Mapping[str, Want],
        entry: Entry,
        source: TensorSource,
        n_parts: int,
        expert: int,
    ) -> Ref | None:
        """A role's part of a tensor: all of it, or its share of every group."""
        want, found = wants[role], self.tensors[str(self._expand(source, expert))]
        name = found.name  # not that of an alias
        self.used.add(name)
        is_made = getattr(found, "made", False)  # such matrices too lie as rows of outputs
        is_transposed = source.transposed and found.dtype != _CODES and not is_made
        if source.transposed and is_made:
            self.turned.add(name)
        n_zeros = self._count(source.zeros, f"{source.where}.zeros", least=0)
        shared = len(entry.roles) > 1
        unknown = [other for other in entry.roles if other not in wants]
        if unknown:
            raise SpecError(f"{entry.where}: {unknown[0]} has no place beside {role} in {place}")
        counts = {other: wants[other].shape[0] * n_parts for other in entry.roles}
        shapes = (want.shape, *want.also) if not shared else (want.shape,)
        full = [(s[0] * n_parts if not shared else sum(counts.values()), *s[1:]) for s in shapes]
        full = [(shape[0] - n_zeros, *shape[1:]) for shape in full]
        if not any(_is(found.shape, shape, is_transposed) for shape in full):
            expected = " or ".join(_shown(s, is_transposed, n_parts) for s in full)
            self._problem(
                "shape",
                name,
                place.role(role),
                f"tensor {name:.{_SHOWN}}: expected {expected}, found {_shown(found.shape)}",
            )
            return None
        rows, step = self._segments(entry, source, counts, role) if shared else ((), 1)
        if n_zeros:
            rows = ((0, full[0][0]), (_ZEROS, n_zeros))
        if not rows and not is_transposed and not want.add:
            return name
        return TensorRef(name, rows, is_transposed, want.add, step)

    def _experts(
        self,
        place: Place,
        role: str,
        wants: Mapping[str, Want],
        entry: Entry,
        source: TensorSource,
    ) -> tuple[TensorRef, ...] | None:
        """A role's parts of a tensor (experts, in, out): a matrix for each expert."""
        name, want = str(self._expand(source, 0)), wants[role]
        self.used.add(name)
        counts = {other: wants[other].shape[0] for other in entry.roles}
        n, n_in, found = want.n_experts, want.shape[1], self.tensors[name].shape
        expected = (n, n_in, sum(counts.values()))
        if found != expected:
            text = f"tensor {name:.{_SHOWN}}: expected {_shown(expected)}, found {_shown(found)}"
            self._problem("shape", name, place.role(role), text)
            return None
        shared = len(entry.roles) > 1
        rows, step = self._segments(entry, source, counts, role, n) if shared else ((), 1)
        return tuple(
            TensorRef(name, rows, transposed=True, step=step, inputs=(e * n_in, n_in))
            for e in range(n)
        )

    def _count(
        self, given: Given | None, where: str, *, least: int = 1, most: int = _MAX_GROUPS
    ) -> int:
        """A number of groups or rows; `least` if the spec says nothing."""
        if given is None:
            return least
        try:
            found = given.resolve(self.facts)
        except UnresolvedError as error:
            raise SpecError(f"{where}: {error}: found nothing") from None
        kind = Whole(least=least, most=most)
        if (taken := kind.take(found.value)) is None:
            raise found.fault(kind.expected)
        return taken

    def _segments(
        self,
        entry: Entry,
        source: TensorSource,
        counts: Mapping[str, int],
        role: str,
        n_experts: int = 1,
    ) -> tuple[tuple[tuple[int, int], ...], int]:
        """Segments of a role, and the step between their rows; counts: those of one of so many
        experts with groups of their own."""
        most = min(counts.values()) * n_experts
        n_groups = self._count(source.groups, f"{source.where}.groups", most=most)
        n_groups = max(1, n_groups // n_experts)
        for other, count in counts.items():
            if count % n_groups:
                raise SpecError(
                    f"{entry.where}: expected rows of {other} in {n_groups} equal groups, "
                    f"found {count}"
                )
        before = sum(counts[r] for r in entry.roles[: entry.roles.index(role)]) // n_groups
        step, count = sum(counts.values()) // n_groups, counts[role] // n_groups
        if n_groups > 1 and count == 1:
            return ((before, n_groups),), step
        if n_groups > _MAX_GROUPS:
            raise SpecError(
                f"{source.where}.groups: expected at most {_MAX_GROUPS}, found {n_groups}"
            )
        return tuple((g * step + before, count) for g in range(n_groups)), 1

    def finish(self, ignore: Sequence[str]) -> frozenset[str]:
        """Adds unused tensors to the problems, and suggests them for missing ones of similar names.
        Returns the names that the spec ignores."""
        left = [t.name for name, t in self.tensors.items() if name == t.name]
        left = [name for name in left if name not in self.used]
        ignored = {name for name in left if any(fnmatchcase(name, p) for p in ignore)}
        left = [name for name in left if name not in ignored]
        self._hint(left)
        for name in left:
            shape = _shown(self.tensors[name].shape)
            text = f"tensor {printable(name):.{_SHOWN}} of {shape} has no role"
            self.problems.append(Problem("unused", name, "", text))
        return frozenset(ignored)

    def _hint(self, names: Sequence[str]) -> None:
        missing = [i for i, p in enumerate(self.problems) if p.kind == "missing" and p.tensor]
        for i in missing[:_MAX_HINTS]:
            problem = self.problems[i]
            text = problem.text + printable(nearest(problem.tensor, names, n=2))
            self.problems[i] = replace(problem, text=text)


class _WithExpert:
    """Facts, and j."""

    def __init__(self, facts: Facts, expert: int) -> None:
        self._facts, self._expert = facts, expert

    def fact(self, name: str) -> Value:
        return self._expert if name == "j" else self._facts.fact(name)

    def has_tensor(self, name: str) -> bool:
        return self._facts.has_tensor(name)


def _is(found: tuple[int, ...], wanted: tuple[int, ...], transposed: bool) -> bool:
    """Whether a tensor has a shape, leading dimensions aside."""
    if len(wanted) == 1:
        return len(found) > 0 and math.prod(found) == wanted[0]
    if len(found) < 2:
        return False
    rows, columns = math.prod(found[:-1]), found[-1]
    return (rows, columns) == (wanted[::-1] if transposed else wanted)


def _shown(shape: tuple[int, ...], transposed: bool = False, n_parts: int = 1) -> str:
    if transposed:
        shape = shape[::-1]
    if n_parts > 1:
        shape = (n_parts, shape[0] // n_parts, *shape[1:])
    return " x ".join(map(str, shape)) or "a scalar"
