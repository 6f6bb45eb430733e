"""Grammars of llama.cpp allow exactly their texts, and errors say what is wrong where."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyflow.constrain import Constraint, Grammars
from pyflow.errors import ConstraintError, MatcherError
from pyflow.tokenizer import Tokenizer

JSON = r"""
root   ::= object  # a comment
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
SUM = r"""root ::= (sum "=" ws term "\n")+
sum  ::= term ([-+*/] ws term)*
term ::= name | num | "(" ws sum ")" ws
name ::= [a-z] [a-z0-9_]* ws
num  ::= [0-9]+ ws
ws   ::= [ \t\n]*"""
CHESS = r"""root ::= (
    # it begins with a number
    "1. " move " " move "\n"
    ([1-9] [0-9]? ". " move " " move "\n")+
)
move ::= (pawn | "O-O" "-O"?) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?"""
LONG = "\n".join(
    [*(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(12)), 'r12 ::= "a"', "root ::= r0"]
)

LANGUAGES: list[tuple[str, Sequence[str], Sequence[str]]] = [
    ('root ::= ("a"*)*', ["", "a", "aaa"], ["b", "ab"]),
    ('root ::= ("a"+)?', ["", "a", "aa"], ["b"]),
    ('root ::= ("a"?)+ "b"', ["b", "aab"], ["", "aa"]),
    ('root ::= "a" ("b" | "c")* "d"?', ["a", "abcbd"], ["", "ad d", "bd"]),
    ('root ::= ("a" | ) "b" | ', ["", "b", "ab"], ["a"]),
    ('root ::= "ab"{2}', ["abab"], ["ab", "abb", "ababab"]),
    ('root ::= [ab]{1,}{2}"c"{ 0 , 2 }', ["ab", "abac", "bbcc"], ["a", "abccc"]),
    ('root ::= "a"{0} "b"{0,2}', ["", "bb"], ["a", "bbb"]),
    ('root ::= "a"{0}"b"', ["b"], ["ab"]),
    (r'root ::= "\x41\u00e9\U0001F600\n\t\r\\\"\[\]"', ['Aé😀\n\t\r\\"[]'], ["A"]),
    (r"root ::= [\]\[\-\\/^]+", ["][-\\/^"], ["a", ""]),
    ("root ::= [^^a-c-]", ["d", "é", "\n"], ["^", "a", "b", "-", "dd", ""]),
    ("root ::= [a-cx-]+", ["abcx-"], ["d", "y"]),
    ("root ::= ..", ["\né", "😀a"], ["a", "abc"]),
    (r"root ::= [\u00e0-\u00ff\x20]+", ["éà ü"], ["e"]),
    ('root ::= a "b"\na ::= [ab]*', ["b", "aab", "bbb"], ["", "ba"]),
    ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
    ('root ::= my-rule-2\nmy-rule-2 ::= "x"', ["x"], ["my"]),
    ('root ::= (\n  "a" # one\n  | "b"\n)\n\n# the end', ["a", "b"], ["", "ab"]),
    ('root ::= "a" |\n "b"\r\n', ["a", "b"], ["\n"]),
    ('root ::= "a // b" "# c"', ["a // b# c"], ["a "]),
    ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "x)", ""]),
    ('root ::= root "+" [0-9] | [0-9]', ["1", "1+2+3"], ["1+", "+1"]),
    ('root ::= "a" root "b" | ', ["", "aabb"], ["aab", "abb", "ba"]),
    ('root ::= [ab] root [ab] | "a" "bc" | "ab" "d"', ["abc", "babda", "aabcb"], ["bca", "a"]),
    ('root ::= a | b\na ::= "x" a | "y"\nb ::= "x" b | "z"', ["xxy", "xz", "y"], ["xx", "yz"]),
    ("start ::= [0-9]\nroot ::= start start\nunused ::= unused", ["12"], ["1"]),
    (JSON, ['{"a": [1, -2.5e3,{}],\n  "\\u00e9é": null}', "{}"], ['{"a"}', "[1]", '{"a": 01}']),
    (SUM, ["a + 1 = 2\n", "(x)= 3\n\nb=4\n"], ["a + = 2\n", "a = 2"]),
    (CHESS, ["1. e4 e5\n2. exd5 O-O-O+\n"], ["1. e4 e5\n", "e4"]),
    ("root ::= " + '("x" ' * 20 + 'root? "a"' + ")" * 20, ["x" * 20 + "a"], ["x" * 20, "a"]),
    (LONG, ["a" * 4096], ["a" * 4095, "a" * 4097]),
]
FAULTS = [
    ("", "a rule named root"),
    ('start ::= "a"', "root, found start"),
    ("root ::= x", "rule root: .* found 'x'"),
    ('root = "a"', "line 1, column 6: expected ::="),
    ('root ::= "a"\nroot ::= "b"', "line 2, column 1: .* second"),
    ('root ::= "a', 'line 1, column 10: expected "'),
    ('root ::= "a\n"', 'line 1, column 10: expected "'),
    ('root ::= "a" [', "line 1, column 14: expected ]"),
    ("root ::= []", "characters in this class"),
    ("root ::= [z-a]", "found z-a"),
    (r'root ::= "\q"', r"found \\q"),
    (r'root ::= "\x4"', r"found \\x4"),
    (r'root ::= "\ud83d"', "half a surrogate"),
    ('root ::= ("a"', r"line 1, column 10: expected \) of this group"),
    ('root ::= "a")', "expected the end of the line"),
    ("root ::= *", "nothing before it"),
    ('root ::= "a"{1', "repetitions such as"),
    ('root ::= "a"{2,1}', "smaller number first"),
    ('root ::= "a"{1,20000}', "10,000 repetitions"),
    ("root ::= " + "(" * 5000, "64 groups"),
    ("\n".join(f'r{i} ::= "a"' for i in range(501)), "500 rules"),
    ("root ::= " + "x? " * 6000 + '\nx ::= "a" x "b" | ', "5,000 parts"),
    ('root ::= "a" root', "rule root: .* ends"),
    ('root ::= "a" | x\nx ::= y "b"\ny ::= x', "rule [xy]: .* ends"),
    ('root ::= ""', "empty text alone"),
    ('root ::= ("" | root)*', "empty text alone"),
]


@pytest.mark.model
@pytest.mark.parametrize(("grammar", "allowed", "refused"), LANGUAGES, ids=range(len(LANGUAGES)))
def test_a_grammar_allows_its_texts_and_no_other(
    grammars: Grammars,
    tokenizer: Tokenizer,
    grammar: str,
    allowed: Sequence[str],
    refused: Sequence[str],
) -> None:
    begun = grammars.matcher(Constraint.gbnf(grammar))

    def takes(text: str) -> bool:
        matcher = begun.copy()
        try:
            matcher.accept(tokenizer.encode(text, add_special=False))
        except MatcherError:
            return False
        return matcher.is_done

    assert [*map(takes, allowed)] == [True] * len(allowed)
    assert [*map(takes, refused)] == [False] * len(refused)


@pytest.mark.parametrize(("grammar", "message"), FAULTS, ids=range(len(FAULTS)))
def test_what_is_no_grammar_is_refused_by_its_place(grammar: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as found:
        Constraint.gbnf(grammar)
    assert len(str(found.value).split()) <= 25
