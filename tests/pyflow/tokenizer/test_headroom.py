"""Under a limit on memory the tokenizers library is called only where it fits in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Reads and uses a tokenizer in a child for each room between 0 and 48 MiB, and prints what the
# children return: 0 done, 4 ResourceError, -6 ended by the library.
PROGRAM = """
import os, resource, sys
from pathlib import Path
from pyflow import errors, formats
from pyflow.tokenizer import from_checkpoint
checkpoint = formats.open(Path(sys.argv[1]))
limit = getattr(resource, sys.argv[2])
field = int(sys.argv[3])
dict(checkpoint.metadata)
for room in range(0, 48 << 20, 2 << 20):
    child = os.fork()
    if child == 0:
        used = int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()
        resource.setrlimit(limit, (used + room, used + room))
        try:
            from_checkpoint(checkpoint).encode("What is left of a thousand words? " * 1000)
        except (errors.ResourceError, MemoryError):
            os._exit(4)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("limit", "field"), [("RLIMIT_AS", "0"), ("RLIMIT_DATA", "5")])
def test_too_little_memory_is_an_error_and_ends_no_process(
    model_path: Callable[[str], Path], limit: str, field: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model_path("smollm2")), limit, field]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    codes = done.stdout.split()
    assert set(codes) == {"4", "0"}
    assert codes == sorted(codes, reverse=True)
