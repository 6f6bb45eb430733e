"""The library that matches grammars, an optional dependency."""

from __future__ import annotations

import re
from types import ModuleType

from pyflow.errors import UnsupportedError

# Held against whatever a schema says of itself.
JSON_OPTIONS = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": "[ \n]{0,2}"}


def llguidance() -> ModuleType:
    """UnsupportedError: it is not installed."""
    try:
        import llguidance as library
    except ImportError as error:
        raise UnsupportedError(
            f"structured output needs llguidance, which does not load ({error}): "
            "pip install 'pyflow-llm[serve]'"
        ) from None
    return library


def fault_of(grammar: str) -> str:
    """Why the library refuses a grammar, in its own words; empty if it does not."""
    is_error, messages = llguidance().LLMatcher.validate_grammar_with_warnings(grammar)
    if not is_error:
        return ""
    # Without the excerpt of the grammar that comes last: users of schemas did not write it.
    text = re.split(r"\n\s*\d+ \| |while processing json-schema:", messages[0])[0]
    if "regex parse error" in text:
        return text.rpartition("error: ")[2].strip()
    reason = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ", " ".join(text.split()))
    if reason.startswith("oneOf constraints"):
        reason = "its schemas may overlap, or cannot be shown not to: write anyOf"
    return reason or "refused"
