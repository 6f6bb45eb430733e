"""Text for people: what nobody has read yet made safe to show, and nouns by their number."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with escapes for what is not printed but obeyed: a terminal's control sequences, line
    ends, marks that turn the direction of writing. Also for bytes that were not UTF-8. The
    characters in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def counted(n: int, noun: str) -> str:
    """The number and the noun, with an s unless it is one."""
    return f"{n} {plural(n, noun)}"


def plural(n: int, noun: str) -> str:
    """The noun alone."""
    return noun if n == 1 else f"{noun}s"
