"""Tokenizers on vocabularies small enough to see what must come out."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyflow.errors import FormatError, GenerationWarning, UnsupportedError
from pyflow.tokenizer import Detokenizer, Tokenizer, from_metadata
from pyflow.tokenizer.base.special_tokens import SpecialTokens
from pyflow.tokenizer.base.utf8 import decode_leniently
from pyflow.tokenizer.ours.bpe import BYTE_CHARACTERS
from pyflow.tokenizer.ours.pretokenize import known

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def bpe(*extra: tuple[str, int], merges: object = (), **keys: object) -> dict[str, object]:
    """Metadata of a byte-level vocabulary: 256 bytes, then `extra` from id 256 on."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTE_CHARACTERS, *(text for text, _ in extra)],
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [kind for _, kind in extra],
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def spm(*extra: tuple[str, float], **keys: object) -> dict[str, object]:
    """Metadata of a scored vocabulary: <unk> <s> </s>, 256 bytes, then `extra` from id 259 on."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *(text for text, _ in extra)],
        "tokenizer.ggml.scores": np.array([0.0] * 259 + [s for _, s in extra], np.float32),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(extra),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def make(metadata: dict[str, object], n_rows: int = 0) -> Tokenizer:
    return from_metadata(metadata, source="m.gguf", n_rows=n_rows)


def test_merges_happen_in_the_order_of_the_list() -> None:
    tokens = [("ab", NORMAL), ("bc", NORMAL), ("abc", NORMAL)]
    first_ab = make(bpe(*tokens, merges=("a b", "b c", "ab c")))
    first_bc = make(bpe(*tokens, merges=("b c", "a b", "ab c")))
    assert first_ab.encode("abc") == [258]
    assert first_bc.encode("abc") == [ord("a"), 257]


def test_a_byte_without_a_token_is_left_out_and_joins_nothing() -> None:
    metadata = bpe(("ab", NORMAL), merges=("a b",))
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index(BYTE_CHARACTERS[4])] = "other"
    tokenizer = make(metadata)
    assert tokenizer.missing_bytes == {4}
    assert tokenizer.decode(tokenizer.encode("a\4b ab\4")) == "ab ab"
    assert tokenizer.encode("a\4b") == [*b"ab"]


def test_the_best_score_is_merged_first_and_the_leftmost_of_equals() -> None:
    letters = [("a", -9.0), ("b", -9.0), ("c", -9.0)]
    no_prefix = {"add_space_prefix": False, "add_bos_token": False}
    right = make(spm(*letters, ("ab", -2.0), ("bc", -1.0), **no_prefix))
    tie = make(spm(*letters, ("ab", -1.0), ("bc", -1.0), **no_prefix))
    assert [right.token_text(i) for i in right.encode("abc")] == ["a", "bc"]
    assert [tie.token_text(i) for i in tie.encode("abc")] == ["ab", "c"]
    odd = make(spm(*letters, ("aa", -1.0), ("aaa", -1.0), **no_prefix))
    assert [odd.token_text(i) for i in odd.encode("aaaaa")] == ["aaa", "aa"]


def test_what_is_no_token_becomes_bytes() -> None:
    tokenizer = make(spm(("x", -1.0), add_space_prefix=False))
    assert tokenizer.encode("xé", add_special=False) == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode([259, 3 + 0xC3, 3 + 0xA9]) == "xé"


def test_the_space_in_front_is_added_after_special_tokens_and_taken_away_again() -> None:
    tokenizer = make(spm(("▁", -2.0), ("a", -2.0), ("▁a", -1.0)))
    assert tokenizer.encode("a") == [1, 261]
    assert tokenizer.encode("a</s>a", parse_special=True) == [1, 261, 2, 261]
    assert tokenizer.decode([1, 261, 2, 261]) == "<s>a</s>a"
    assert tokenizer.decode([1, 261, 261], skip_special=True) == "a a"
    assert tokenizer.encode(" a") == [1, 259, 261]
    assert tokenizer.decode([259, 261]) == " a"


def test_merges_never_depend_on_text_that_they_cannot_reach() -> None:
    rng = np.random.default_rng(5)
    pieces = {"".join(rng.choice(list("abc▁"), size=rng.integers(1, 5))) for _ in range(60)}
    scores = [(piece, float(-rng.integers(1, 9))) for piece in sorted(pieces | set("abc▁"))]
    tokenizer = make(spm(*scores, ("dd", -1.0), add_space_prefix=False, add_bos_token=False))
    for _ in range(200):
        parts = ["".join(rng.choice(list("abc "), size=rng.integers(1, 30))) for _ in range(3)]
        # No token holds a d beside another character, so the parts are independent.
        alone = [tokenizer.encode(part) for part in ("d", *parts)]
        together = tokenizer.encode("d".join(parts))
        assert together == [*alone[1], *alone[0], *alone[2], *alone[0], *alone[3]]


def test_user_defined_tokens_are_always_read_control_tokens_on_request() -> None:
    tokenizer = make(bpe(("<tool>", USER_DEFINED), ("<end>", CONTROL)))
    assert 256 in tokenizer.encode("a<tool>b")
    assert 257 not in tokenizer.encode("a<end>b")
    assert tokenizer.encode("<end><tool>", parse_special=True) == [257, 256]
    assert tokenizer.decode([257, 256], skip_special=True) == "<tool>"
    assert tokenizer.control_starts("<tool> <end><end") == [7]


def test_the_longest_special_token_wins_even_when_it_begins_later() -> None:
    special = SpecialTokens([("abc", 1), ("cdef", 2), ("a", 3), ("cd", 4), ("é", 5), ("xy", 6)])
    assert list(special.split("abcdef")) == [3, "b", 2]
    assert list(special.split("abcd")) == [1, "d"]
    assert list(special.split("zaa")) == ["z", 3, 3]
    assert list(special.split("")) == []
    assert list(SpecialTokens([]).split("abc")) == ["abc"]
    assert list(SpecialTokens([("", 7)]).split("abc")) == ["abc"]


def test_a_long_run_that_many_special_tokens_fit_takes_little_memory() -> None:
    special = SpecialTokens([(" " * n, n) for n in range(2, 32)])
    assert list(special.split(" " * 100)) == [31, 31, 31, 7]
    tracemalloc.start()
    assert sum(map(int, special.split(" " * 200_000))) == 200_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_streaming_waits_for_whole_characters() -> None:
    pieces = {1: b"a\xf0\x9f", 2: b"\x91", 3: b"\x8db", 4: b"\xff", 5: b"\xe2\x82", 6: b"x", 7: b""}
    stream = Detokenizer(pieces.__getitem__)
    assert [stream.feed(i) for i in (1, 2, 3)] == ["a", "", "👍b"]
    assert [stream.feed(i) for i in (4, 5, 6, 7)] == ["\ufffd", "", "\ufffdx", ""]
    assert stream.flush() == ""
    assert stream.feed(1) == "a"
    assert stream.flush() == "\ufffd"
    assert stream.feed(3) == "\ufffdb"


def test_a_str_that_stands_for_bytes_is_read_as_them() -> None:
    tokenizer = make(bpe())
    for raw in (b"caf\xe9", b"\xff\x80a", "ü".encode()):
        assert tokenizer.encode(raw.decode("utf-8", "surrogateescape")) == tokenizer.encode(raw)
    assert tokenizer.encode("\ud83d") == tokenizer.encode(b"\xed\xa0\xbd")


def test_code_points_past_the_last_are_bad_bytes() -> None:
    assert decode_leniently(b"a\xf4\x90\x80\x80") == "a" + "\ufffd" * 4
    assert decode_leniently(b"\xf4\x8f\xbf\xbf\xf8") == "\U0010ffff\ufffd"


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    tokenizer = make(bpe())
    for wrong in (-1, 256):
        with pytest.raises(IndexError, match="vocabulary of 256"):
            tokenizer.token_bytes(wrong)
        with pytest.raises(IndexError):
            tokenizer.decode([wrong])


def test_unused_places_stand_for_nothing() -> None:
    assert make(bpe(("[PAD256]", UNUSED))).decode([256, 65]) == "A"


def test_the_end_of_a_harmony_message_does_not_end_the_answer() -> None:
    names = ("<|end|>", "<|return|>", "<|call|>", "<|channel|>")
    tokenizer = make(bpe(*((name, CONTROL) for name in names)))
    assert tokenizer.stop_ids == {257, 258}
    assert not tokenizer.is_control(259)
    assert make(bpe(("<|end|>", NORMAL))).stop_ids == {256}


def test_an_unknown_pre_tokenizer_is_named_with_those_like_it() -> None:
    with pytest.raises(UnsupportedError, match=r"m\.gguf: .*'lama-bpe'.* llama-bpe"):
        make(bpe(pre="lama-bpe"))
    assert len(known()) > 30


@pytest.mark.parametrize("model", ["rwkv"])
def test_an_unknown_kind_of_tokenizer_is_named(model: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{model}'"):
        make(bpe(model=model))


BROKEN: list[tuple[Callable[..., dict[str, object]], str, object, str]] = [
    (bpe, "model", None, "expected str"),
    (bpe, "model", 3, "expected str"),
    (bpe, "tokens", [], "empty"),
    (bpe, "tokens", "abc", "array of strings"),
    (bpe, "tokens", ["a", b"\xff"], "item 1 is not UTF-8"),
    (bpe, "tokens", ["a", "\udcff"], "item 1 is not UTF-8"),
    (bpe, "token_type", [1] * 255, "expected 256 values, one per token, found 255"),
    (bpe, "token_type", [1] * 255 + [7], "token 255 has type 7"),
    (bpe, "token_type", [1] * 255 + [-1], "token 255 has type -1"),
    (bpe, "token_type", "x", "array of numbers"),
    (bpe, "token_type", [[1], [2, 3]], "array of numbers"),
    (bpe, "merges", None, "missing"),
    (bpe, "merges", ["ab"], "item 0, 'ab', is not two parts"),
    (bpe, "merges", ["a b"], "merges"),
    (bpe, "merges", ["nowhere b"], "merges"),
    (bpe, "eot_token_id", "x", "expected a token id"),
    (bpe, "eom_token_id", True, "expected a token id"),
    (bpe, "add_eos_token", 1, "expected bool"),
    (bpe, "pre", 5, "expected str"),
    (spm, "scores", None, "scores is missing"),
    (spm, "scores", [0.0], "expected 259 values"),
    (spm, "scores", [float("nan")] * 259, "token 0 has score nan"),
    (spm, "scores", ["x"] * 259, "array of numbers"),
    (spm, "tokens", [f"t{i}" for i in range(259)], "no token for byte 0x00"),
    (spm, "add_space_prefix", "no", "expected bool"),
]


@pytest.mark.parametrize(("kind", "key", "value", "message"), BROKEN, ids=range(len(BROKEN)))
def test_broken_metadata_is_a_format_error_that_names_the_key(
    kind: Callable[..., dict[str, object]], key: str, value: object, message: str
) -> None:
    metadata = kind(**{key: value})
    if value is None and key != "model":
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(FormatError, match=r"^m\.gguf: tokenizer\.ggml\.") as caught:
        make(metadata)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_without_a_token_have_no_text() -> None:
    for metadata in (bpe(("<x>", CONTROL)), spm(("a", -1.0))):
        tokenizer = make(metadata, n_rows=400)
        assert tokenizer.n_vocab < 300
        ids = tokenizer.encode("b", add_special=False)
        assert tokenizer.decode([350, *ids, 399]) == tokenizer.decode(ids)
        assert tokenizer.detokenizer().feed(399) == tokenizer.token_text(399) == ""
        assert not tokenizer.is_control(399)
        for token in (-1, 400):
            with pytest.raises(IndexError, match="400"):
                tokenizer.token_text(token)


def test_marks_past_the_embedding_are_left_out_and_text_is_not() -> None:
    marks = bpe(("ab", NORMAL), ("<x>", CONTROL), ("[PAD]", UNUSED), merges=("a b",))
    with pytest.warns(GenerationWarning, match=r"m\.gguf: .* 259 .* 257 "):
        tokenizer = make(marks, n_rows=257)
    assert tokenizer.n_vocab == 257
    assert tokenizer.encode("ab", parse_special=True) == [256]
    assert max(tokenizer.encode("<x>", parse_special=True)) < 256
    assert make(marks, n_rows=256).n_vocab == 259  # which from_checkpoint refuses
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [CONTROL]
    with pytest.warns(GenerationWarning):
        assert make(spm(("<x>", -1.0), token_type=types), n_rows=259).n_vocab == 259


@pytest.mark.parametrize("value", [-1, 2**32 - 1, 5000, np.int32(-1)])
@pytest.mark.parametrize("role", ["bos", "eos", "eot", "padding", "unknown", "fim_pre"])
def test_an_id_past_the_vocabulary_is_none_and_told(role: str, value: int) -> None:
    key = f"tokenizer.ggml.{role}_token_id"
    with pytest.warns(GenerationWarning, match=rf"m\.gguf: {key}: {value}"):
        tokenizer = make({**bpe(("<x>", CONTROL)), key: value})
    assert tokenizer.bos_id is tokenizer.eos_id is None
    with pytest.warns(GenerationWarning):
        made = make({**spm(), key: value})
    assert (made.bos_id, made.eos_id) == (1, 2)  # llama.cpp falls back on these


def test_texts_that_should_begin_with_a_token_that_is_none_go_without() -> None:
    with pytest.warns(GenerationWarning, match="add_bos_token"):
        tokenizer = make(bpe(add_bos_token=True))
    assert len(tokenizer.encode("a")) == 1


def test_a_text_that_comes_twice_is_the_last_one() -> None:
    twice = bpe(("ab", NORMAL), ("a", NORMAL), ("b", NORMAL), merges=("a b",))
    with pytest.warns(GenerationWarning, match=r"m\.gguf: .*97 and 257 .*'a'.* 2 "):
        tokenizer = make(twice)
    assert [i for i in tokenizer.encode("a ab b") if i > 255] == [257, 256, 258]
    assert tokenizer.decode([257, 97]) == "aa"
    with pytest.warns(GenerationWarning):
        tokenizer = make(spm(("a", -1.0), ("a", -2.0)))
    assert tokenizer.encode("a", add_special=False)[-1] == 260


def test_a_byte_token_that_names_no_byte_is_a_format_error() -> None:
    metadata = spm(("<0xZZ>", 0.0))
    types: Any = metadata["tokenizer.ggml.token_type"]
    types[259] = BYTE
    with pytest.raises(FormatError, match="<0xZZ>"):
        make(metadata).token_bytes(259)
