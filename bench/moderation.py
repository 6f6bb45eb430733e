"""How well a model sorts questions by self-reflection: its confusions, question by question.

    python bench/moderation.py -m qwen2.5-coder-1.5b

The questions are ours (bench/data/moderation.tsv), 20 harmless ones and 20 others. The words of the
prompt were chosen on them, so a model does worse on questions of others.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pyflow
from pyflow.generate.moderation import ACCEPTABLE, CATEGORIES, moderate
from pyflow.text import markdown_table

QUESTIONS = Path(__file__).with_name("data") / "moderation.tsv"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    args = parser.parse_args()
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    items = [tuple(line.split("\t")) for line in lines]
    with pyflow.load(args.model) as model:
        verdicts = moderate(model, [(text, None) for _, text in items])
    found = Counter((kind, v.category) for (kind, _), v in zip(items, verdicts, strict=True))
    rows = [[kind, *(str(found[kind, other]) for other in CATEGORIES)] for kind in CATEGORIES]
    print(markdown_table(["is \\ found", *CATEGORIES], rows, ["is \\ found"]))
    right = sum(found[kind, kind] for kind in CATEGORIES)
    passed = sum(found[kind, ACCEPTABLE] for kind in CATEGORIES)
    good = found[ACCEPTABLE, ACCEPTABLE]
    n_good = sum(kind == ACCEPTABLE for kind, _ in items)
    print(f"\n{args.model}: {right} of {len(items)} right; of {passed} let through {good} were ")
    print(f"harmless, of {n_good} harmless ones {good} were let through\n")
    for (kind, text), v in zip(items, verdicts, strict=True):
        if v.category != kind:
            print(f"- {kind}, found {v.category} ({v.probabilities[v.category]:.0%}): {text}")


if __name__ == "__main__":
    main()
