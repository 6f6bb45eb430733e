"""Lists of tokens beside translators: a token's id is its place.

CTranslate2 has shared_vocabulary.json, a list of texts, or .txt, a text per line; Marian has YAML,
a line `token: id` for each token, and is read by these lines alone. Hugging Face has vocab.json, an
object of ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyflow.formats.side_files import read_json, read_text

from pyflow.errors import FormatError

_MAX_NBYTES = 1 << 26
_BY_IDS = "vocab.json"
_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", "a": "\a", "b": "\b"}
_ESCAPES |= {"v": "\v", "f": "\f", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
_LAST = 0x10FFFF


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a file by their ids. FormatError, naming file and token: it is broken, or ids
    are missing or come twice."""
    if path.suffix == ".json":
        if path.name == _BY_IDS:
            return by_ids(read_json(path, dict[str, int], max_nbytes=_MAX_NBYTES), path)
        return _once(read_json(path, list[str], max_nbytes=_MAX_NBYTES), path)
    text = read_text(path, max_nbytes=_MAX_NBYTES)
    if path.suffix == ".txt":
        return _once(text.removesuffix("\n").split("\n"), path)
    return by_ids(dict(_lines(text, path)), path)


def by_ids(ids: Mapping[str, int], path: Path) -> list[str]:
    """Tokens in the order of their ids, which must be 0, 1, 2 and so on."""
    texts = sorted(ids, key=ids.__getitem__)
    for i, text in enumerate(texts):
        if ids[text] != i:
            raise FormatError(f"{path}: token {text!r:.80}: expected id {i}, found {ids[text]}")
    return texts


def _once(texts: list[str], path: Path) -> list[str]:
    if len(set(texts)) != len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise FormatError(f"{path}: token {twice!r:.80}: expected each token once, found it again")
    return texts


def _lines(text: str, path: Path) -> Iterator[tuple[str, int]]:
    """Tokens and ids. A long token may stand in a line of its own: `? token`, then `: id`."""
    key = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith(("#", "---", "...")):
            continue
        if line.startswith("? "):
            key = line[2:]
            continue
        token, _, last = (key, "", line[1:]) if key else line.rpartition(":")
        if not (digits := last.strip()).isdecimal() or len(digits) > 9:
            raise FormatError(
                f"{path}: line {number}: expected a token and its id, found {line!r:.80}"
            )
        key = ""
        yield _unquoted(token.strip(" ")), int(digits)


def _unquoted(token: str) -> str:
    if len(token) > 1 and token[0] == token[-1] == '"':
        return _ESCAPED.sub(_unescaped, token[1:-1])
    if len(token) > 1 and token[0] == token[-1] == "'":
        return token[1:-1].replace("''", "'")
    return token


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    if what[0] in "xuU" and len(what) > 1:
        code = int(what[1:], 16)
        return chr(code) if code <= _LAST else match[0]
    return _ESCAPES.get(what, what)
