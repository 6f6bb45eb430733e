"""Input that may not be UTF-8."""

from __future__ import annotations


def to_bytes(text: str | bytes) -> tuple[str, bytes | None]:
    """(text as str, its bytes if they are not valid UTF-8, else None).

    An invalid byte 0xAB becomes the lone surrogate U+DCAB in the str, so that the valid parts can
    still be searched. A str with lone surrogates is treated as the bytes that these encode.
    """
    if isinstance(text, str):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            pass
        else:
            return text, None
        try:
            raw = text.encode("utf-8", "surrogateescape")  # command line arguments, file names
        except UnicodeEncodeError:
            raw = text.encode("utf-8", "surrogatepass")  # half a UTF-16 pair, as JSON can hold
    else:
        raw = text
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape"), raw


def decode_leniently(raw: bytes) -> str:
    """Decodes like llama.cpp: overlong forms and surrogates are valid, any other byte is U+FFFD.

    A code point past U+10FFFF, on which llama.cpp aborts, becomes four U+FFFD.
    """
    points = []
    at = 0
    while at < len(raw):
        lead = raw[at]
        length = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if lead < 0xF0 else 4
        tail = raw[at + 1 : at + length]
        if (
            0x80 <= lead < 0xC0
            or lead >= 0xF8
            or len(tail) < length - 1
            or any(byte & 0xC0 != 0x80 for byte in tail)
        ):
            points.append("\ufffd")
            at += 1
            continue
        point = lead if length == 1 else lead & (0x7F >> length)
        for byte in tail:
            point = point << 6 | byte & 0x3F
        if point > 0x10FFFF:
            points.append("\ufffd")
            at += 1
            continue
        points.append(chr(point))
        at += length
    return "".join(points)
