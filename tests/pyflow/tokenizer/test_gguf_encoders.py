"""The vocabularies of encoders in GGUF files give the ids of the same ones in folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pyflow.errors import FormatError
from pyflow.tokenizer import from_folder, from_metadata
from pyflow.tokenizer.base.token_types import TokenType

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*MARKS, *LETTERS, *",.!?", *(f"##{c}" for c in LETTERS), "the", "##ing", "日", "river"]
TEXTS = [
    "The river, singing!",
    "  Ünïcödé\tdéjà\u0301 vu ",
    "日本the日",
    "a" * 101,
    "x\u0000y\u200bz 👍",
    "[SEP] is text, [MASK] too",
    "",
]


def wordpiece_metadata(**more: Any) -> dict[str, Any]:
    marked = [w[2:] if w.startswith("##") else w if w in MARKS else f"▁{w}" for w in WORDS]
    kinds = [TokenType.CONTROL if w in MARKS else TokenType.NORMAL for w in WORDS]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": marked,
        "tokenizer.ggml.token_type": np.array(kinds),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def test_wordpiece_gives_the_ids_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    folder, gguf = from_folder(tmp_path), from_metadata(wordpiece_metadata(), source="x.gguf")
    for text in TEXTS:
        assert gguf.encode(text) == folder.encode(text)
        assert gguf.encode(text, parse_special=True) == folder.encode(text, parse_special=True)
    assert gguf.frame(is_pair=True) == folder.frame(is_pair=True)
    assert gguf.frame(is_pair=True).around([7], [8, 9]) == ([2, 7, 3, 8, 9, 3], [0, 0, 0, 1, 1, 1])
    assert gguf.decode(gguf.encode("the river"), skip_special=True) == "the river"


def test_wordpiece_keeps_letters_as_the_vocabulary_has_them() -> None:
    kept = from_metadata(
        wordpiece_metadata(**{"normalizer.lowercase": False}), source="x.gguf"
    ).encode("The", add_special=False)
    assert kept == [1]
    metadata = wordpiece_metadata()
    metadata["tokenizer.ggml.tokens"][3] = "▁sep"
    with pytest.raises(FormatError, match="seperator_token_id"):
        from_metadata(metadata, source="x.gguf")


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("add_bos", [False, True])
def test_unigram_gives_the_ids_of_the_library(trims: bool, add_bos: bool) -> None:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("<s>", 0.0), ("▁", -2.0)]
    pieces += [(c, -4.0 - i / 10) for i, c in enumerate(LETTERS)]
    pieces += [("▁the", -3.0), ("ing", -3.5), ("▁river", -5.0), ("▁si", -4.2), ("ver", -4.1)]
    kinds = [TokenType.CONTROL] * 4 + [TokenType.NORMAL] * (len(pieces) - 4)
    kinds[2] = TokenType.UNKNOWN
    found = from_metadata(
        {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": [text for text, _ in pieces],
            "tokenizer.ggml.scores": np.array([score for _, score in pieces], np.float32),
            "tokenizer.ggml.token_type": np.array(kinds),
            "tokenizer.ggml.bos_token_id": 3,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.unknown_token_id": 2,
            "tokenizer.ggml.remove_extra_whitespaces": trims,
            **({"tokenizer.ggml.add_bos_token": True} if add_bos else {}),
        },
        source="x.gguf",
    )
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=2))
    steps = [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" +"), " ")] if trims else []
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    for text in ("the singing river", "thriver  xyz", *[" si the ver"] * trims):
        assert found.encode(text, add_special=False) == library.encode(text).ids
    frame = found.frame(is_pair=True)
    before, between = ([3], [1, 1]) if add_bos else ([], [1])
    assert frame.around([7], [8])[0] == [*before, 7, *between, 8, 1]
    assert found.encode("the") == [*before, *found.encode("the", add_special=False), 1]


def test_scores_must_be_numbers() -> None:
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<unk>", "a"],
        "tokenizer.ggml.scores": np.array([0.0, np.nan], np.float32),
        "tokenizer.ggml.token_type": np.array([TokenType.UNKNOWN, TokenType.NORMAL]),
    }
    with pytest.raises(FormatError, match="scores"):
        from_metadata(metadata, source="x.gguf")


def merged_pieces(folder: Path) -> dict[str, Any]:
    """Writes a tokenizer.json like Gemma's, and gives what a GGUF file would say of it."""
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>"]
    pieces = [*marks, *(f"<0x{i:02X}>" for i in range(256))]
    library = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", "▁")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=pieces)
    library.train_from_iterator([Path(__file__).read_text()] * 2, trainer)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    state = json.loads(library.to_str())
    vocab = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    vocab.append("\n\n\n")
    state["model"]["vocab"]["\n\n\n"] = len(vocab) - 1
    own = state["added_tokens"][0]
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in marks]
    state["added_tokens"].append(
        own | {"id": len(vocab) - 1, "content": "\n\n\n", "special": False}
    )
    (folder / "tokenizer.json").write_text(json.dumps(state))
    kinds = dict.fromkeys(vocab, TokenType.NORMAL) | dict.fromkeys(marks, TokenType.CONTROL)
    kinds |= dict.fromkeys(pieces[len(marks) :], TokenType.BYTE)
    kinds |= {"<unk>": TokenType.UNKNOWN, vocab[-1]: TokenType.USER_DEFINED}
    merges = [one if isinstance(one, str) else " ".join(one) for one in state["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": np.array([kinds[text] for text in vocab]),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }


def test_merged_pieces_give_the_ids_of_the_folder(tmp_path: Path) -> None:
    metadata = merged_pieces(tmp_path)
    folder, gguf = from_folder(tmp_path), from_metadata(metadata, source="x.gguf")
    for text in [*TEXTS, "  def f(x):\n\n\n    return  x\n", "<|turn>user\nhi", "<0x41> <bos>"]:
        for parse in (False, True):
            ids = gguf.encode(text, parse_special=parse)
            assert ids == folder.encode(text, parse_special=parse)
            assert gguf.decode(ids[1:]) == text.replace("\u2581", " ")
    assert gguf.encode("x")[0] == gguf.bos_id == 2
    assert gguf.eos_id == 1


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("merges", ["a"], "merges"),
        ("merges", ["no such"], "merges"),
        ("tokens", [], "empty"),
        ("bos_token_id", "x", "bos_token_id"),
    ],
)
def test_hostile_merged_pieces_are_refused(
    key: str, value: Any, match: str, tmp_path: Path
) -> None:
    metadata = merged_pieces(tmp_path)
    with pytest.raises(FormatError, match=match):
        from_metadata(metadata | {f"tokenizer.ggml.{key}": value}, source="x.gguf")
