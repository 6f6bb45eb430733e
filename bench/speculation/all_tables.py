"""Every table and chart of docs/speculative.md.

    python bench/speculation/all_tables.py SPEC_BENCH_QUESTIONS FOLDER [TABLE ...]

Writes <table>.json with every sample, and <table>.md; existing tables stay, so that a stopped run
resumes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from summaries import as_markdown

MEASURE = Path(__file__).with_name("measure.py")
QWEN = ["-m", "qwen2.5-coder-1.5b", "-t", "2"]
CODE = str(Path(__file__).parents[1] / "data" / "code_prompts.jsonl")
LOOKAHEADS = [
    "lookahead:15/5/15",
    "lookahead:10/5/10",
    "lookahead:7/5/7",
    "lookahead:3/4/3",
    "lookahead:7/5/7/noexplore",
    "lookahead:7/5/7/noverify",
    "lookahead:7/5/7/noprompt",
    "jacobi:8",
]


def tables(questions: str, folder: Path) -> dict[str, list[str]]:
    """The options of measure.py by the name of the table."""
    spec_bench = ["--prompts", questions]
    auto = ["--methods", "auto"]
    return {
        "tasks": [*QWEN, *spec_bench, *auto],
        "sampled": [*QWEN, *spec_bench, *auto, "--temp", "1"],
        "code": [*QWEN, "--prompts", CODE, *auto],
        "batch2": [*QWEN, *spec_bench, *auto, "--batch", "2", "--n-per-task", "8"],
        "batch4": [
            *QWEN,
            *spec_bench,
            "--methods",
            "auto,none",
            "--batch",
            "4",
            "--n-per-task",
            "24",
        ],
        "lookahead": [
            *QWEN,
            *spec_bench,
            *("--methods", ",".join(LOOKAHEADS), "--fixed", "--n-per-task", "1"),
            *("--plot", str(folder / "lookahead.png")),
        ],
        "draft": [
            *("-m", "smollm2", "-t", "2", *spec_bench, "--n-per-task", "5"),
            *("--methods", "draft,auto", "--draft-model", "self"),
            *("--draft-layers", "0-19,25-29"),
        ],
    }


def main(questions: str, folder: Path, wanted: list[str]) -> int:
    """Makes the named tables, by default all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in tables(questions, folder).items():
        target = folder / f"{name}.json"
        if (wanted and name not in wanted) or target.exists():
            continue
        print(f"{name}: {MEASURE} {' '.join(options)}", file=sys.stderr)
        command = [sys.executable, str(MEASURE), *options, "-o", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            return done.returncode
        (folder / f"{name}.md").write_text(as_markdown(json.loads(done.stdout)) + "\n")
        target.write_text(done.stdout)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("questions", help="Spec-Bench's question.jsonl")
    parser.add_argument("folder", type=Path, help="where the tables go")
    parser.add_argument("tables", nargs="*", help="names of tables; all where none is given")
    given = parser.parse_args()
    sys.exit(main(given.questions, given.folder, given.tables))
