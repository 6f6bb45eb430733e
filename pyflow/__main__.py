"""`python -m pyflow` is the command `pyflow`."""

import sys

from pyflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
