"""Write docs/api.md from the structs of the server's requests; with --check, see if it is so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from pyflow.serve.app import POSTED
from pyflow.serve.http.bodies import Body

TARGET = Path(__file__).with_name("api.md")
HEAD = """\
# Requests of the server

Generated from `pyflow/serve/api`: change the structs there and run `make docs`, not this file.
[serving.md](serving.md) says what the routes are for.

`null` is the same as leaving a field out. A field without a default must be given. Fields that
change nothing here are taken; those that would change the answer and cannot be obeyed are refused.
The header `x-pyflow-ignored` names all others.
"""


def sections() -> Iterator[str]:
    """A section for each route, then one for each kind of object in them."""
    objects: dict[str, inspect.StructType] = {}
    for path, (kind, _) in POSTED.items():
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        yield f"\n## POST {path}\n\n{table(info, objects)}"
        yield from notes(kind)
    yield "\n## Objects\n"
    done: set[str] = set()
    while left := sorted(objects.keys() - done):
        for name in left:
            done.add(name)
            yield f"\n### {name}\n\n{table(objects[name], objects)}"


def notes(kind: type[Body]) -> Iterator[str]:
    if kind.harmless:
        taken = ", ".join(f"`{name}`" for name in sorted(kind.harmless))
        yield f"\nTaken, without effect: {taken}.\n"
    if kind.refused:
        refused = ", ".join(f"`{name}` ({advice})" for name, advice in sorted(kind.refused.items()))
        yield f"\nRefused: {refused}.\n"


def table(info: inspect.StructType, objects: dict[str, inspect.StructType]) -> str:
    lines = ["| field | value | default |", "|---|---|---|"]
    for field in sorted(info.fields, key=lambda field: (not field.required, field.encode_name)):
        value = spelled(field.type, objects).replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {value} | {default(field)} |")
    return "\n".join(lines) + "\n"


def default(field: inspect.Field) -> str:
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        value: Any = field.default_factory()
    else:
        value = field.default
    if value is None or isinstance(value, msgspec.Struct):
        return "none"
    return f"`{msgspec.json.encode(value).decode()}`"


def spelled(info: inspect.Type, objects: dict[str, inspect.StructType]) -> str:
    """A type in words; structs in it go to `objects`."""
    match info:
        case inspect.StructType(cls=cls):
            objects.setdefault(cls.__name__, info)
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case inspect.UnionType(types=types):
            shown = [each for each in types if not isinstance(each, inspect.NoneType)]
            return " or ".join(spelled(each, objects) for each in shown)
        case inspect.LiteralType(values=values):
            return " or ".join(f'`"{value}"`' for value in values)
        case inspect.ListType(item_type=item):
            return f"list of ({spelled(item, objects)})"
        case inspect.DictType(value_type=inspect.AnyType()):
            return "object"
        case inspect.DictType(value_type=value):
            return f"object of ({spelled(value, objects)})"
        case inspect.IntType(ge=least, le=most):
            return f"integer{span(least, most)}"
        case inspect.FloatType():
            return "number"
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case _:
            return "any"


def span(least: int | None, most: int | None) -> str:
    if least is None:
        return ""
    return f", {least} or more" if most is None or most >= 1 << 30 else f", {least} to {most}"


def main(arguments: list[str]) -> int:
    text = HEAD + "".join(sections())
    if arguments == ["--check"]:
        if not TARGET.exists() or TARGET.read_text() != text:
            print(f"{TARGET.name} is out of date: run 'make docs'", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
