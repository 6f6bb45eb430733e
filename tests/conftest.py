"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The clone has a ./pyflow without its extension: neither the tests nor the programs they start may
# import from the current directory, however pytest was called.
os.environ["PYTHONSAFEPATH"] = "1"
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parents[1]]
