"""Lark grammars: what of their language is allowed, and those that pyflow writes itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyflow.errors import ConstraintError

# What is no code: comments, strings, regular expressions.
_QUOTED = re.compile(
    r"""(?://|\#)[^\n]* | "(?:[^"\\\n]|\\.)*"i? | /(?:[^/\\\n]|\\.)+/[imslux]*""", re.VERBOSE
)
_SETTINGS = re.compile(r"%llguidance\s*\{\s*\}")
# The library follows rules by recursion: on a stack of 8 MB, a chain of 2,000 rules still compiled.
MAX_RULES = 500
_ATTRIBUTES = frozenset(("lazy", "suffix", "capture"))
# In code, and why it is refused.
_REFUSED = (
    (r"%json\b", "inline schemas: give the schema itself as a constraint"),
    (r"%llguidance\b", "settings of the parser"),
    (r"@[\w-]+", "other grammars"),
    (r"<[^<>\n]*>", "special tokens: write their text in quotes, if they are text"),
)


def check(text: str) -> None:
    """ConstraintError if a user's grammar asks for what could end or escape the grammar."""
    code = _QUOTED.sub('""', _SETTINGS.sub("", text))
    if (n := len(re.findall(r"^\s*[?!]*[\w.-]+[^:\n]*:", code, re.MULTILINE))) > MAX_RULES:
        raise ConstraintError(f"Lark grammar: expected up to {MAX_RULES} rules, found {n}")
    for pattern, what in _REFUSED:
        if found := re.search(pattern, code):
            raise ConstraintError(f"Lark grammar: {found[0]:.60}: not allowed here: {what}")
    for body in re.findall(r"[\w-]\[([^\]]*)\]", code):
        for name in body.split(","):
            if (name := name.split("=")[0].strip()) not in _ATTRIBUTES:
                raise ConstraintError(
                    f"Lark grammar: [{name:.60}]: expected {', '.join(sorted(_ATTRIBUTES))}"
                )


def quoted(text: str) -> str:
    """A string of the language."""
    return json.dumps(text, ensure_ascii=False)


def of_choice(texts: Sequence[str]) -> str:
    """A grammar of these texts and no other."""
    return "start: TEXT\nTEXT: " + " | ".join(quoted(text) for text in texts)


def of_calls(
    trigger: str,
    calls: Sequence[tuple[str, Mapping[str, Any], str]],
    *,
    required: bool,
    many: bool,
    special: int | None,
) -> str:
    """A grammar of free text in which every trigger begins one of the calls.

    calls: what begins it, the trigger included; the schema, which is enforced; what ends it.
    required: there is nothing but calls, or, unless many, but one. special: the token that is the
    trigger, if one is.
    """
    name = quoted(trigger) if special is None else f"<[{special}]>"
    any_call = " | ".join(f"call_{i}" for i in range(len(calls)))
    if required:
        more = r" (/[ \n]{1,2}/? call)*" if many else ""
        lines = [f"start: call{more}", f"call: {name} ({any_call})"]
    else:
        head = f"head[lazy]: TEXT {name}" if special is None else f"head: TEXT {name}"
        lines = ["start: call* TEXT", r"TEXT: /(.|\n)*/", head, f"call: head ({any_call})"]
    for i, (begin, schema, end) in enumerate(calls):
        rest = begin[len(trigger) :]
        parts = [quoted(rest) if rest else "", f"body_{i}", quoted(end) if end else ""]
        lines.append(f"call_{i}: {' '.join(filter(None, parts))}")
        lines.append(f"body_{i}: %json {json.dumps(schema)}")
    return "\n".join(lines)
