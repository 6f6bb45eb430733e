"""Write a text to calibrate on for WikiText: questions, and articles in the form of that corpus.

usage: python bench/calibration.py QUESTIONS OUT

QUESTIONS is Spec-Bench's question.jsonl (https://github.com/hemingkyx/Spec-Bench). The articles,
some of Wikipedia of 2015, lie among the test data of the gensim package, whose wikicorpus module
also takes the markup off: pip install gensim. Questions lie between articles, so that any beginning
of the text has some of everything; what WikiText-2 tests on is refused by `pyflow imatrix`.
"""

from __future__ import annotations

import bz2
import json
import random
import re
import sys
from pathlib import Path

ARTICLES = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
LEAST = 2000  # characters of an article, without which it is a stub
MOST = 6000  # of each, so that many have a share
ENDS = {"see also", "references", "external links", "notes", "further reading", "sources"}
SEED = 1


def separated(line: str) -> str:
    """Words and punctuation as WikiText has them: "1 @,@ 000 people , self @-@ made"."""
    line = re.sub(r"(?<=\d)([.,])(?=\d)", r" @\1@ ", line)
    line = re.sub(r"(?<=\w)-(?=\w)", " @-@ ", line)
    line = re.sub(r"(?<!@)([,;:!?()\[\]\"“”–—/$%])(?!@)", r" \1 ", line)
    line = re.sub(r"(?<=\w)('s|'re|'ll|'ve|'d|n't|'(?=\s))", r" \1", line)
    line = re.sub(r"(?<=[\w)\"])\.(?=\s+[A-Z\"]|\s*$)", " .", line)
    return re.sub(r"\s+", " ", line).strip()


def article(title: str, text: str) -> str:
    """An article without markup: its title, its headings and its longer paragraphs."""
    text = re.sub("'{2,}", "", text)  # bold and italics
    lines, wanted = [f"\n = {separated(title)} = \n"], True
    for line in map(str.strip, text.splitlines()):
        if heading := re.fullmatch(r"(=+)\s*(.*?)\s*=+", line):
            wanted = heading[2].lower() not in ENDS
            marks = " =" * len(heading[1])
            lines += [f"\n{marks} {separated(heading[2])}{marks} \n"] * wanted
        elif wanted and len(line) >= 60 and line[0] not in "*#:;|!{}<":
            lines.append(f" {separated(line)} ")
    found = "\n".join(lines)
    return found[: found.rfind("\n", 0, MOST) + 1] if len(found) >= LEAST else ""


def articles() -> list[str]:
    import gensim
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki

    path = Path(gensim.__file__).parent / "test" / "test_data" / ARTICLES
    with bz2.open(path, "rt", encoding="utf-8") as file:
        pages = [(title, text) for title, text, _ in extract_pages(file, ("0",))]
    return [a for title, text in pages if (a := article(title, filter_wiki(text)))]


def main(questions: Path, target: Path) -> None:
    asked = [
        "\n".join(json.loads(line)["turns"])
        for line in questions.read_text(encoding="utf-8").splitlines()
    ]
    random.Random(SEED).shuffle(asked)
    found = articles()
    share = len(asked) / len(found)
    parts = []
    for i, text in enumerate(found):
        parts += [text, *asked[round(i * share) : round((i + 1) * share)]]
    target.write_text("\n".join(parts), encoding="utf-8")
    size = f"{target.stat().st_size:,} bytes"
    print(f"{target}: {len(found)} articles, {len(asked)} questions, {size}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
