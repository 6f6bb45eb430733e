"""Run the long checks, each once: what has passed on these very sources is not run again.

usage: python tests/accept.py [--again] [PYTEST ARGUMENT ...]

Every result is written down when it is known, in .accept/<hash of the sources>.jsonl, so that a run
that was stopped goes on where it was. --again forgets what passed. Exit code: pytest's, and 1 where
a check could not run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a result depends on; a change to the documentation does not make a check stale.
SOURCES = ["CMakeLists.txt", "pyproject.toml", "csrc", "pyflow", "quant", "formats"]
SOURCES += ["bench", "tests"]


def sources_hash() -> str:
    """The git tree hash of the sources as they lie in the working tree, committed or not."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GIT_INDEX_FILE": str(Path(folder) / "index")}

        def git(*arguments: str) -> str:
            command = ["git", "-C", str(ROOT), *arguments]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout.strip()

        git("add", "--", *SOURCES)
        return git("write-tree")


class Ledger:
    """A pytest plugin: leaves out the items that have passed and writes down those that do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed: dict[str, float] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.passed[entry["item"]] = entry["seconds"]
        self.skipped: list[str] = []
        self.ran: list[str] = []
        self._phases: list[pytest.TestReport] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = [item for item in items if item.nodeid in self.passed]
        self.skipped = [item.nodeid for item in done]
        items[:] = [item for item in items if item.nodeid not in self.passed]
        config.hook.pytest_deselected(items=done)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._phases = []
        self._phases.append(report)
        if report.when != "teardown":
            return
        outcomes = {phase.outcome for phase in self._phases}
        outcome = next(o for o in ("failed", "skipped", "passed") if o in outcomes)
        seconds = sum(phase.duration for phase in self._phases)
        self.ran.append(f"{outcome:7} in {seconds:.1f} s  {report.nodeid}")
        if outcome == "passed":
            entry = {"item": report.nodeid, "seconds": round(seconds, 1), "at": time.ctime()}
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        terminalreporter.section(f"accept: {len(self.ran)} ran, {len(self.skipped)} had passed")
        for line in self.ran:
            write(f"ran      {line}")
        for item in self.skipped:
            write(f"skipped  passed in {self.passed[item]:.1f} s before  {item}")
        write(f"results in {self.path.relative_to(ROOT)}")


def main(arguments: list[str]) -> int:
    ledger_path = ROOT / ".accept" / f"{sources_hash()}.jsonl"
    ledger_path.parent.mkdir(exist_ok=True)
    if "--again" in arguments:
        arguments.remove("--again")
        ledger_path.unlink(missing_ok=True)
    os.chdir(ROOT)
    ledger = Ledger(ledger_path)
    code = pytest.main(["-m", "accept", "-v", *arguments], plugins=[ledger])
    if code == pytest.ExitCode.OK and any(line.startswith("skipped") for line in ledger.ran):
        print("some checks could not run; the reasons are above")
        return 1
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and ledger.skipped:
        return 0
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
