"""Prompts for a model whose own answers are wanted: tasks over passages of texts, and made-up ones.

None is from a benchmark. No prompt comes twice, as greedy answers to it would be the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

_PASSAGE_CHARACTERS = (300, 1400)
"""Long enough that a third of all tokens are read, and far from the end of any context."""
_PASSAGE_SHARE = 0.4
# How often a prompt without a passage is of each kind.
_SHARES = (0.55, 0.2, 0.1, 0.15)
_MOST_REPEATS = 200
"""So many prompts in a row that came before: there are no others."""

_OF_PASSAGE = (
    "Summarize the following text in a few sentences.\n\n{}",
    "{}\n\nWhat are the most important points of this text?",
    "Write three questions that this text answers, and answer them.\n\n{}",
    "Rewrite this text in simple words.\n\n{}",
    "Continue this text in the same style.\n\n{}",
    "{}\n\nBased on the text above, explain to a beginner what it is about.",
    "Read this and list the facts that it states.\n\n{}",
    "Use the following passage to answer: what should a reader do next?\n\n{}",
)
_OF_TOPIC = (
    "Explain {} to a child.",
    "What is {}?",
    "How does {} work?",
    "Write a short story about {}.",
    "Write an email to a colleague about {}.",
    "Give me five tips on {}.",
    "Make a table with facts about {}.",
    "Write a dialogue between two friends about {}.",
    "What are the advantages and disadvantages of {}?",
    "Describe the history of {}.",
    "Who has contributed most to {}, and how?",
    "Write a poem about {}.",
    "Plan a lesson about {} for a school class.",
    "What do people often get wrong about {}?",
    "Compare {} with something similar.",
    "I want to learn about {}. Where should I start?",
    "Write the introduction of an article on {}.",
    "How has {} changed in the last hundred years?",
    "Why is {} important?",
    "Name and explain the parts of {}.",
    "Write a product description that has to do with {}.",
    "Imagine you are an expert on {}. What would you warn of?",
    "Give step by step instructions about {}.",
    "Write a speech about {} for a small audience.",
)
_WISHES = ("", "", "", " Be brief.", " Use at most {n} sentences.", " Give {n} examples.")
_TOPICS = (
    "photosynthesis|bread baking|the water cycle|chess openings|solar panels|the French Revolution|"
    "bicycle repair|vaccines|compound interest|jazz music|volcanoes|time management|the moon|"
    "public libraries|machine learning|garden soil|sailing|the Roman Empire|healthy sleep|"
    "electric motors|bees|job interviews|the printing press|coral reefs|tea|marathon training|"
    "black holes|recycling|renting a flat|the human heart|trains|cheese|climate change|"
    "learning a language|antibiotics|photography|earthquakes|online security|the Silk Road|dogs|"
    "meditation|bridges|inflation|wind energy|cooking rice|DNA|theatre|the Olympic Games|knitting|"
    "river deltas|computer memory|migration of birds|wood working|democracy|glaciers|first aid|"
    "coffee|the periodic table|budgeting|camping|whales|maps|public speaking|steel|wine|robots|"
    "city parks|satellites|mushrooms|the Renaissance|hotels|swimming|batteries|winter tyres|cats|"
    "mountain rescue|soap|tides|painting a room|insurance|ancient Egypt|rockets|noise|paper|honey|"
    "school lunches|the immune system|deserts|clocks|weather forecasts|silence|apple trees|"
    "running a small shop|museums|lighthouses|probability|folk tales|fire safety|yoga|dinosaurs"
)
_THINGS = "apples|books|tickets|boxes|bottles|chairs|stamps|coins|bags of flour|pencils"
_NAMES = "Anna|Ben|Carla|David|Emma|Farid|Grace|Hugo|Ines|Jonas|Kim|Lena|Marek|Nora"
_SUMS = (
    "{name} buys {a} {thing} for {b} euros each and pays with {c} euros. How much money is left?",
    "{name} has {a} {thing} and gives away {b} of every {c}. How many are left?",
    "A shop sells {a} {thing} a day. How many does it sell in {b} weeks if it is closed {c} days?",
    "{name} walks {a} km on the first day and {b} km more on each following day. How far does "
    "{name} walk in {c} days?",
    "There are {a} {thing} in each of {b} rooms. {c} are broken. How many are whole? Think step by "
    "step.",
    "Calculate {a} * {b} + {c} and explain how you do it.",
)
_LANGUAGES = "Python|JavaScript|C|Java|SQL|a shell script|Rust|HTML and CSS|Go"
_CODE = (
    "reads a file and counts its words|sorts a list of records by two keys|checks a password|"
    "finds prime numbers below n|reverses a linked list|parses a date|merges two sorted lists|"
    "draws a simple bar chart|computes the factorial of a number|searches a binary tree|"
    "converts temperatures|removes duplicates|finds the longest word|counts vowels|"
    "simulates rolling {n} dice|prints a multiplication table up to {n}|validates an address|"
    "groups orders by customer|computes a moving average over {n} values|caches results"
)
_GERMAN = (
    "Der alte Mann|Meine Schwester|Die neue Lehrerin|Unser Nachbar|Ein kleines Kind|Der Zug|"
    "Die Regierung|Das Wetter|Ein junger Arzt|Die Firma",
    "hat gestern|wird morgen|muss bald|konnte leider nicht|will heute Abend",
    "am Bahnhof|in der Stadt|nach langer Zeit|ohne Hilfe|wegen des Regens|trotz allem|im Sommer|"
    "mit großer Freude",
    "ein altes Haus|die wichtige Frage|den langen Weg|das rote Fahrrad|einen guten Plan|"
    "die ganze Geschichte|viel Geld",
    "gefunden|verloren|erklärt|gekauft|vergessen|gesehen|bezahlt|verbessert",
)
_LATER = ("obwohl niemand es wusste", "weil es nötig war", "und alle waren zufrieden", "")


def passages_of(texts: Sequence[str]) -> list[str]:
    """Pieces of texts that begin and end at paragraphs, or at blanks where these are too long."""
    least, most = _PASSAGE_CHARACTERS
    found = []
    for text in texts:
        piece = ""
        for paragraph in re.split(r"\n\s*\n", text):
            for part in _parts(paragraph.strip(), most):
                if len(piece) + len(part) > most and len(piece) >= least:
                    found.append(piece)
                    piece = ""
                piece = f"{piece}\n\n{part}"[-most:] if piece else part
        if len(piece) >= least:
            found.append(piece)
    return found


def _parts(paragraph: str, most: int) -> Iterator[str]:
    while len(paragraph) > most:
        cut = max(paragraph.rfind(" ", 0, most), 0) or most
        yield paragraph[:cut]
        paragraph = paragraph[cut:].lstrip()
    if paragraph:
        yield paragraph


def prompts(passages: Sequence[str], seed: int) -> Iterator[str]:
    """Prompts without end, or until no new ones are found; the same for the same arguments."""
    rng = np.random.default_rng([seed, 1])
    seen: set[str] = set()
    repeats = 0
    while repeats < _MOST_REPEATS:
        made = _prompt(rng, passages)
        repeats = repeats + 1 if made in seen else 0
        if not repeats:
            seen.add(made)
            yield made


def _prompt(rng: np.random.Generator, passages: Sequence[str]) -> str:
    if passages and rng.random() < _PASSAGE_SHARE:
        return _one(rng, _OF_PASSAGE).format(_one(rng, passages))
    kind: Callable[[np.random.Generator], str] = _KINDS[rng.choice(len(_SHARES), p=_SHARES)]
    return kind(rng)


def _topic(rng: np.random.Generator) -> str:
    wish = _one(rng, _WISHES).format(n=int(rng.integers(2, 9)))
    return _one(rng, _OF_TOPIC).format(_one(rng, _TOPICS)) + wish


def _sum(rng: np.random.Generator) -> str:
    a, b, c = (int(n) for n in rng.integers(2, (90, 12, 40)))
    return _one(rng, _SUMS).format(a=a, b=b, c=c, thing=_one(rng, _THINGS), name=_one(rng, _NAMES))


def _code(rng: np.random.Generator) -> str:
    task = _one(rng, _CODE).format(n=int(rng.integers(2, 60)))
    return f"Write a function in {_one(rng, _LANGUAGES)} that {task}."


def _translation(rng: np.random.Generator) -> str:
    sentences = []
    for _ in range(int(rng.integers(1, 4))):
        words = " ".join(_one(rng, part) for part in _GERMAN)
        later = _one(rng, _LATER)
        sentences.append(f"{words}, {later}." if later else f"{words}.")
    return "Translate German to English: " + " ".join(sentences)


_KINDS = (_topic, _sum, _code, _translation)


def _one(rng: np.random.Generator, choices: str | Sequence[str]) -> str:
    """One of them; a text holds several, with | between."""
    choices = choices.split("|") if isinstance(choices, str) else choices
    return choices[int(rng.integers(len(choices)))]
