"""The fixed table of Unicode classes against the one that this Python carries."""

import itertools
import unicodedata

import pytest

from pyflow.tokenizer.ours import unicode_ranges

CLASSES = {
    "L": unicode_ranges.LETTERS,
    "M": unicode_ranges.MARKS,
    "N": unicode_ranges.NUMBERS,
    "P": unicode_ranges.PUNCTUATION,
}


CASES = {
    "Lu Lt": unicode_ranges.UPPERCASE,
    "Ll": unicode_ranges.LOWERCASE,
    "Sm Sc Sk So": unicode_ranges.SYMBOLS,
}


def spans(ranges: str) -> list[range]:
    return list(unicode_ranges.spans(ranges))


@pytest.mark.parametrize("letter", CLASSES)
def test_classes_agree_with_unicode_where_both_know_a_character(letter: str) -> None:
    listed = {point for span in spans(CLASSES[letter]) for point in span}
    for point in range(0x80, 0x110000):
        category = unicodedata.category(chr(point))
        if category == "Cn":
            continue  # an older Python does not know it yet
        if point in listed:
            assert category[0] == letter, hex(point)
        elif category[0] == letter:
            # A newer Python knows more: then 15.1 has it in no class at all.
            others = (span for ranges in CLASSES.values() for span in spans(ranges))
            assert unicodedata.unidata_version > "15.1", hex(point)
            assert not any(point in span for span in others), hex(point)


@pytest.mark.parametrize("categories", CASES)
def test_cases_and_symbols_agree_with_unicode(categories: str) -> None:
    listed = {point for span in spans(CASES[categories]) for point in span}
    for point in range(0x80, 0x110000):
        if unicodedata.unidata_version > "15.1" and point not in listed:
            continue
        category = unicodedata.category(chr(point))
        assert category == "Cn" or (category in categories.split()) is (point in listed), hex(point)


def test_ranges_are_sorted_disjoint_and_beyond_ascii() -> None:
    for ranges in (*CLASSES.values(), unicode_ranges.WHITESPACE):
        found = spans(ranges)
        assert found[0].start >= 0x80
        assert all(a.stop < b.start for a, b in itertools.pairwise(found))
    points = [point for ranges in CLASSES.values() for span in spans(ranges) for point in span]
    assert len(points) == len(set(points))


def test_whitespace_is_what_unicode_calls_white_space() -> None:
    # str.isspace also counts the four ASCII separators; beyond ASCII it is the same property.
    expected = {point for point in range(0x80, 0x110000) if chr(point).isspace()}
    assert {p for span in spans(unicode_ranges.WHITESPACE) for p in span} == expected
