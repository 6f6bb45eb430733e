"""`pyflow`, the command, and `python -m pyflow`."""

import sys


def main() -> int:
    """Runs the process's own command line; returns the exit code."""
    code = _run()
    if (devices := sys.modules.get("pyflow.devices")) is not None:
        devices.leave(code)
    return code


def _run() -> int:
    try:
        # Inside: Ctrl-C while this is imported has nothing to tell but that it came.
        from pyflow.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
