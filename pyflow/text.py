"""Text for people and from them: made safe to print, counted nouns, tables, JSON's objects."""

from collections.abc import Collection
from typing import Any


def printable(text: str, *, keep: str = "") -> str:
    """`text` with unprintable characters escaped: control sequences, line ends, marks that change
    the direction of writing, bytes that were not UTF-8. The characters in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def size(nbytes: int) -> str:
    """Bytes in the unit that suits them, as in 98 MB."""
    if nbytes < 1_000_000:
        return f"{nbytes / 1e3:.0f} kB"
    return f"{nbytes / 1e6:.0f} MB" if nbytes < 1_000_000_000 else f"{nbytes / 1e9:.1f} GB"


def counted(n: int, noun: str) -> str:
    """The number and the noun, with an s unless it is one."""
    return f"{n} {plural(n, noun)}"


def plural(n: int, noun: str) -> str:
    """The noun alone."""
    return noun if n == 1 else f"{noun}s"


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON text, for `json.loads`; ValueError: a key is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r:.60} is given twice in one object")
    return found


def markdown_table(head: list[str], rows: list[list[str]], left: Collection[str] = ()) -> str:
    """A table with padded columns, right-aligned except for those named in `left`."""
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(2, *map(len, column)) for column in zip(head, *rows, strict=True)]
    is_left = [name in left for name in head]
    rule = [
        ":" + "-" * (w - 1) if at_left else "-" * (w - 1) + ":"
        for w, at_left in zip(widths, is_left, strict=True)
    ]
    lines = [head, rule, *rows]
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(w) if at_left else cell.rjust(w)
            for cell, w, at_left in zip(line, widths, is_left, strict=True)
        )
        + " |"
        for line in lines
    )
