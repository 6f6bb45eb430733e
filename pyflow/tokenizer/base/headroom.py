"""Memory that the process may still take, where it has a limit (`ulimit -v`, `ulimit -d`).

The `tokenizers` library ends the process where it is refused memory, so pyflow looks before.
"""

from __future__ import annotations

import resource
from pathlib import Path

from pyflow.errors import ResourceError

# What the library takes at most. Measured: 11.5 per byte of a tokenizer.json, 264 per byte of text.
JSON_NBYTES = 14
TEXT_NBYTES = 300
ADDED_NBYTES = 1000

# Each limit, the field of /proc/self/statm that it bounds, and the shell's name for it.
_LIMITS = (
    (resource.RLIMIT_AS, 0, "ulimit -v"),
    (resource.RLIMIT_DATA, 5, "ulimit -d"),
)
# What the interpreter takes meanwhile.
_SPARE_NBYTES = 1 << 20


def vocab_nbytes(n_tokens: int, n_merges: int = 0) -> int:
    """Bytes that a vocabulary takes while the library builds it; 160 to 180 each were measured."""
    return 200 * (n_tokens + n_merges)


def is_limited() -> bool:
    """Whether the process has a limit on its memory."""
    return any(_soft(kind) != resource.RLIM_INFINITY for kind, _, _ in _LIMITS)


def check_headroom(source: str, nbytes: int) -> None:
    """ResourceError, naming `source`, unless the limits leave room for nbytes."""
    for kind, field, name in _LIMITS:
        limit = _soft(kind)
        if limit == resource.RLIM_INFINITY:
            continue
        used = int(Path("/proc/self/statm").read_bytes().split()[field]) * resource.getpagesize()
        if limit - used < nbytes + _SPARE_NBYTES:
            raise ResourceError(
                f"{source}: the tokenizer needs {nbytes + _SPARE_NBYTES:,} bytes of memory, the "
                f"limit leaves {max(0, limit - used):,}; raise it ({name})"
            )


def _soft(kind: int) -> int:
    return resource.getrlimit(kind)[0]
