"""Run a ring of the tests and say how long it took.

usage: python tests/run.py quick|test|oracles|clients [PYTEST ARGUMENT ...]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each has a half of the tests, then half of what the other has left: so most modules run in one of
# them, and what their tests share is made once.
TWO_AT_A_TIME = ["-n", "2", "--dist", "worksteal"]
SLOWEST = ["--durations=20", "--durations-min=3"]
# Markers, and how the tests that they select run. What starts ranks takes all CPUs by itself, so
# that nothing runs beside it.
RINGS: dict[str, list[tuple[str, list[str]]]] = {
    "quick": [
        (
            "quick or not (slow or accept or model or mpi or compiles or oracle or client"
            " or aarch64)",
            TWO_AT_A_TIME,
        )
    ],
    "test": [
        ("not (accept or mpi or aarch64)", TWO_AT_A_TIME),
        ("mpi and not (accept or aarch64)", []),
    ],
    "oracles": [("(oracle or aarch64) and not accept", [])],
    "clients": [("client and not accept", [])],
}
OK, NO_TESTS = 0, 5  # pytest's exit codes


def main(ring: str, arguments: list[str]) -> int:
    began = time.monotonic()
    codes = []
    for markers, how in RINGS[ring]:
        command = [sys.executable, "-m", "pytest", "-m", markers, *how, *SLOWEST, *arguments]
        codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"make {ring} took {minutes} min {seconds} s")
    # Arguments may select tests of one part only.
    return next((code for code in codes if code not in (OK, NO_TESTS)), min(codes))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in RINGS:
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
