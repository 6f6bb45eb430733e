"""Text that nobody has read yet, made safe to show."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with escapes for what is not printed but obeyed: a terminal's control sequences, line
    ends, marks that turn the direction of writing. Also for bytes that were not UTF-8. The
    characters in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
