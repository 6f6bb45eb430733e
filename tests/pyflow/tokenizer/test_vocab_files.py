"""vocab.json with merges.txt, and vocab.txt: the ids of the classes that read such files."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing

from pyflow.errors import FilesWarning, FormatError, UnsupportedError
from pyflow.tokenizer import from_folder

from .conftest import DOCUMENTS, SLICES

Config = dict[str, Any]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BYTE_LEVEL: dict[str, Config] = {
    "without": {},
    "gpt2": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "<s>"},
    "spaced": {"tokenizer_class": "CodeGenTokenizerFast", "add_prefix_space": True},
    "roberta": {"tokenizer_class": "RobertaTokenizer"},
}
WORDPIECE: dict[str, Config] = {
    "without": {},
    "cased": {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
    "accents": {"strip_accents": False, "tokenize_chinese_chars": False},
    "unaccented": {"do_lower_case": False, "strip_accents": True},
}


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder by the name of a kind, its vocabulary trained on DOCUMENTS."""

    @cache
    def folder(kind: str) -> Path:
        path = tmp_path_factory.mktemp(kind)
        if kind == "byte_level":
            names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
            library: Any = ByteLevelBPETokenizer()
            library.train_from_iterator(DOCUMENTS, 2000, show_progress=False, special_tokens=names)
        else:
            library = BertWordPieceTokenizer(lowercase=False)
            library.train_from_iterator(DOCUMENTS, 2000, show_progress=False)
        library.save_model(str(path))
        return path

    return folder


def copy(source: Path, target: Path, config: Config) -> Path:
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    if config:
        (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


def agree(folder: Path, library: Any, texts: list[str]) -> None:
    tokenizer = from_folder(folder)
    for text in texts:
        ids = library.encode(text).ids
        assert tokenizer.encode(text, parse_special=True) == ids
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_vocab_json_and_merges_give_the_ids_of_the_library(
    name: str, vocab: Callable[[str], Path], wikitext2: str, hostile: str, tmp_path: Path
) -> None:
    config = BYTE_LEVEL[name]
    folder = copy(vocab("byte_level"), tmp_path, config)
    library = ByteLevelBPETokenizer(
        str(folder / "vocab.json"),
        str(folder / "merges.txt"),
        add_prefix_space=bool(config.get("add_prefix_space")),
    )
    roberta = name == "roberta"
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["<|endoftext|>"]
    library.add_special_tokens([*names, *filter(None, [config.get("bos_token")])])
    if roberta or "bos_token" in config:
        library._tokenizer.post_processor = TemplateProcessing(
            single=f"<s> $A{roberta * ' </s>'}", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    agree(folder, library, [hostile, *(wikitext2[at] for at in SLICES), "a <|endoftext|> <mask> b"])
    assert from_folder(folder).add_eos == roberta


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDPIECE)
def test_vocab_txt_gives_the_ids_of_the_library(
    name: str, vocab: Callable[[str], Path], wikitext2: str, hostile: str, tmp_path: Path
) -> None:
    config = WORDPIECE[name]
    folder = copy(vocab("wordpiece"), tmp_path, config)
    library = BertWordPieceTokenizer(
        str(folder / "vocab.txt"),
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    agree(
        folder,
        library,
        [hostile, *(wikitext2[at] for at in SLICES), "a [MASK] b [SEP]", "日本語 é"],
    )


@pytest.mark.accept
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("byte_level", "GPT2Tokenizer"),
        ("byte_level", "Qwen2Tokenizer"),
        ("byte_level", "RobertaTokenizer"),
        ("wordpiece", "BertTokenizer"),
    ],
)
def test_the_classes_of_transformers_give_these_ids(
    kind: str,
    name: str,
    vocab: Callable[[str], Path],
    wikitext2: str,
    hostile: str,
    oracle: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    transformers = oracle("transformers")
    config: Config = {"tokenizer_class": name}
    if name == "GPT2Tokenizer":
        config |= {"add_bos_token": True, "add_eos_token": True}
    folder = copy(vocab(kind), tmp_path, config)
    theirs = getattr(transformers, name).from_pretrained(folder)
    ours = from_folder(folder)
    for text in (hostile, *(wikitext2[at] for at in SLICES)):
        assert ours.encode(text, parse_special=True) == theirs.encode(text)


def test_qwen2_cuts_words_by_an_expression_of_its_own(
    vocab: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(vocab("byte_level"), tmp_path, {"tokenizer_class": "Qwen2Tokenizer"})
    tokenizer = from_folder(folder)
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("2026 e\u0301")]
    assert texts[:4] == ["2", "0", "2", "6"]  # digit by digit
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")  # composed


def test_merges_of_other_line_ends_and_without_a_version_are_the_same(
    vocab: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(vocab("byte_level"), tmp_path, {})
    expected = from_folder(folder).encode("The same words again.")
    lines = (folder / "merges.txt").read_text().splitlines()[1:]
    (folder / "merges.txt").write_text("\r\n".join(lines) + "\r\n\n")
    assert from_folder(folder).encode("The same words again.") == expected


SMALL = {"a": 0, "b": 1, "ab": 2}
VOCAB = json.dumps(SMALL).encode()
QWEN2_WITH_BOS = b'{"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true}'
WRONG: list[tuple[dict[str, bytes], str]] = [
    ({"vocab.json": b""}, "vocab.json: expected JSON"),
    ({"vocab.json": b'{"a": 0,'}, "vocab.json: expected JSON"),
    ({"vocab.json": b"[]"}, "vocab.json: expected `object`"),
    ({"vocab.json": b"{}"}, "vocab.json: expected 1 to"),
    ({"vocab.json": b'{"a": 0, "b": 0}'}, "both have id 0"),
    ({"vocab.json": b'{"a": -1}'}, "'a' has id -1"),
    ({"vocab.json": b'{"a": 99999999999999999999}'}, "vocab.json: "),
    ({"vocab.json": b'{"a": 4000000000}'}, "'a' has id 4000000000"),
    ({"vocab.json": b'{"a": 0.5}'}, "expected `int`"),
    ({"vocab.json": b'{"' + b"a" * 5000 + b'": 0}'}, "token 0 has 5,000 characters"),
    ({"vocab.json": b'{"\xff": 0}'}, "expected UTF-8 text, found byte 0xff"),
    ({"vocab.json": b"\0" * 64}, "vocab.json: expected the file itself, found zeros"),
    ({"merges.txt": b"\xff b"}, "merges.txt: expected UTF-8 text"),
    ({"merges.txt": b"a"}, "merges.txt: line 1: expected two tokens, found 'a'"),
    ({"merges.txt": b"#version: 0.2\na b c"}, "merges.txt: line 2: expected two tokens"),
    ({"merges.txt": b"\na b"}, "merges.txt: line 1: expected two tokens, found ''"),
    ({"merges.txt": b"a c"}, "line 1: joins 'a' and 'c', but there is no token 'c'"),
    ({"merges.txt": b"b a"}, "line 1: joins 'b' and 'a', but there is no token 'ba'"),
    ({"merges.txt": b"a" * (1 << 20)}, "line 1: expected two tokens"),
    ({"tokenizer_config.json": QWEN2_WITH_BOS}, "no token None, the bos_token"),
    ({"vocab.txt": b""}, "vocab.txt: expected 1 to"),
    ({"vocab.txt": b"a\nb\n\xe2\x82"}, "vocab.txt: expected UTF-8 text"),
    ({"vocab.txt": b"a\nb"}, "vocab.txt: WordPiece error: Missing [UNK]"),
    ({"vocab.txt": b"[CLS]\n[SEP]\na"}, "vocab.txt"),
    ({"vocab.txt": b"x" * (1 << 20)}, "token 0 has 1,048,576 characters"),
]


@pytest.mark.parametrize(("files", "message"), WRONG, ids=range(len(WRONG)))
def test_broken_files_are_named_with_the_place(
    files: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    kind = {} if "vocab.txt" in files else {"vocab.json": VOCAB, "merges.txt": b"a b\n"}
    for name, content in {**kind, **files}.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError) as caught:
        from_folder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert message in str(caught.value)


def test_classes_that_read_the_same_files_otherwise_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes(VOCAB)
    (tmp_path / "merges.txt").write_bytes(b"a b")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    with pytest.raises(UnsupportedError, match=r"CLIPTokenizer.*GPT2Tokenizer"):
        from_folder(tmp_path)
    (tmp_path / "merges.txt").unlink()
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(UnsupportedError, match=r"CLIPTokenizer.*vocab\.txt"):
        from_folder(tmp_path)


def test_of_several_kinds_tokenizer_json_counts(
    vocab: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(vocab("wordpiece"), tmp_path, {})
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(folder / "tokenizer.json"))
    with pytest.warns(FilesWarning, match=r"vocab\.txt: left aside for tokenizer\.json"):
        assert from_folder(folder).n_vocab == 1
