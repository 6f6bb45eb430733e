"""Write a text to calibrate on for WikiText: questions, and articles in a form like that corpus's.

    python bench/calibration.py QUESTIONS OUT

QUESTIONS is Spec-Bench's question.jsonl (https://github.com/hemingkyx/Spec-Bench). The articles,
some of Wikipedia, lie among the test data of the gensim package, whose wikicorpus module also takes
the markup off: pip install gensim. They get spaces about punctuation much as that corpus has them.
Questions lie between articles, so that any beginning of the text has some of everything. What
WikiText-2 tests on is not among them; `pyflow imatrix` would refuse it.
"""

from __future__ import annotations

import argparse
import bz2
import json
import random
import re
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
    try:
        import gensim
        from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    except ImportError as error:
        raise SystemExit(f"{error}: pip install gensim") from None

    path = Path(gensim.__file__).parent / "test" / "test_data" / ARTICLES
    with bz2.open(path, "rt", encoding="utf-8") as file:
        pages = [(title, text) for title, text, _ in extract_pages(file, ("0",))]
    return [a for title, text in pages if (a := article(title, filter_wiki(text)))]


def questions_of(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return ["\n".join(json.loads(line)["turns"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path}: expected questions as Spec-Bench has them: {error!r}") from None


def main(questions: Path, target: Path) -> None:
    if target.exists():
        raise SystemExit(f"{target} is there already; name another file")
    asked = questions_of(questions)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", metavar="QUESTIONS", type=Path)
    parser.add_argument("target", metavar="OUT", type=Path)
    args = parser.parse_args()
    main(args.questions, args.target)
