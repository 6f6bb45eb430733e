"""The tokenizer of a GGUF file gives the ids of the folder's, or there is none."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import sentencepiece
from pyflow.formats import Checkpoint

from pyflow import chat, formats
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.gguf_export import GgufModel, to_gguf, vocab
from pyflow.tokenizer import NoTokenizerError, Tokenizer, from_checkpoint
from pyflow.tokenizer.base.settings import read_settings

from ..specs.test_families import fixture
from ..specs.tiny import weights
from ..tokenizer.conftest import SLICES
from ..tokenizer.test_sentencepiece import KINDS, blob, files, number, piece
from .written import write

pytestmark = pytest.mark.slow

__all__ = ["files"]
Folders = Callable[[str], Path]
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


def hub(folder: Path, tokenizer: Path, settings: dict[str, Any], n_vocab: int) -> Checkpoint:
    """A tiny model with a tokenizer's files, and an embedding of so many rows."""
    for path in tokenizer.iterdir():
        shutil.copy(path, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    golden = fixture("hf_llama3")
    tensors = weights(golden)
    name = "model.embed_tokens.weight"
    tensors[name] = np.resize(tensors[name], (n_vocab, 64)).astype(np.float16)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    config = golden["config"] | {"vocab_size": n_vocab, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    return formats.open(folder)


def both(checkpoint: Checkpoint, model: GgufModel, path: Path) -> tuple[Tokenizer, Tokenizer]:
    """The folder's tokenizer, and that of the GGUF file of its `model`."""
    rows = json.loads((checkpoint.path.parent / "config.json").read_text())["vocab_size"]
    other = formats.open(write(path / "m.gguf", model))
    return from_checkpoint(checkpoint, n_rows=rows), from_checkpoint(other, n_rows=rows)


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))


REAL = {
    "smollm2": (49152, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
    "qwen2.5-coder-1.5b": (151936, {"eos_token": "<|im_end|>"}),
}


@pytest.mark.model
@pytest.mark.parametrize("name", REAL)
def test_a_real_vocabulary_comes_back_as_it_was(
    name: str,
    folder_of: Folders,
    metadata_of: Callable[[str], dict[str, Any]],
    wikitext2: str,
    hostile: str,
    tmp_path: Path,
) -> None:
    n_vocab, settings = REAL[name]
    checkpoint = hub(tmp_path, folder_of(name), settings, n_vocab)
    model, metadata = to_gguf(checkpoint), metadata_of(name)
    found = model.metadata
    for key in ("model", "pre", "tokens", "merges", "eos_token_id", "add_bos_token"):
        assert found[f"tokenizer.ggml.{key}"] == metadata[f"tokenizer.ggml.{key}"], key
    types = np.array(metadata["tokenizer.ggml.token_type"])
    types[types == 5] = 1  # of qwen's padding the library knows no more
    assert np.array_equal(found["tokenizer.ggml.token_type"], types)
    ours, theirs = both(checkpoint, model, tmp_path)
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_id, theirs.eos_id)
    assert ours.stop_ids <= theirs.stop_ids
    for text in [*(wikitext2[part] for part in SLICES), unicodedata.normalize("NFC", hostile)]:
        assert theirs.encode(text) == ours.encode(text)
    turn = "<|im_start|>user\nHello<|im_end|>\n"
    assert theirs.encode(turn, parse_special=True) == ours.encode(turn, parse_special=True)


def test_pieces_of_bytes_get_scores_by_the_order_of_their_merges(
    folder_of: Folders, wikitext2: str, hostile: str, tmp_path: Path
) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    checkpoint = hub(tmp_path, folder_of("byte_fallback"), settings, 2300)
    ours, theirs = both(checkpoint, to_gguf(checkpoint), tmp_path)
    assert theirs.add_bos
    assert theirs.add_eos
    for text in [*(wikitext2[part] for part in SLICES), hostile, "", " ", "  a", "<unk>"]:
        assert theirs.encode(text) == ours.encode(text)
    ids = ours.encode(wikitext2[:2000])
    assert theirs.decode(ids, skip_special=True) == ours.decode(ids, skip_special=True)


@pytest.mark.model
def test_gemmas_pieces_come_back_as_they_were(
    metadata_of: Callable[[str], dict[str, Any]],
    wikitext2: str,
    tmp_path: Path,
) -> None:
    metadata = metadata_of("gemma3")
    columns = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    raw = b"".join(
        piece(text.replace(" ", "\u2581"), float(score), 2 if text == "<unk>" else int(type_))
        for text, score, type_ in zip(*columns, strict=True)
    )
    raw += blob(2, number(3, 2) + number(35, 1) + blob(46, b"<bos>") + blob(47, b"<eos>"))
    raw += blob(3, number(3, 0) + number(4, 0))
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma/tokenizer.model").write_bytes(raw)
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    checkpoint = hub(tmp_path, tmp_path / "gemma", settings, 262144)
    model = to_gguf(checkpoint)
    found = model.metadata
    # Of the unknown token's type converters say another thing than its file, see below.
    left_out = ["token_type", "unknown_token_id", "add_sep_token"]
    for key in metadata:
        if key.startswith("tokenizer") and key.split(".")[-1] not in left_out:
            assert np.array_equal(found[key], metadata[key]), key
    types = metadata["tokenizer.ggml.token_type"]
    assert np.flatnonzero(found["tokenizer.ggml.token_type"] != types).tolist() == [3]
    ours, theirs = both(checkpoint, model, tmp_path)
    assert theirs.encode(wikitext2[SLICES[0]]) == ours.encode(wikitext2[SLICES[0]])


def test_template_and_ids_go_with_it(folder_of: Folders, tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    checkpoint = hub(tmp_path, folder_of("byte_fallback"), settings, 2300)
    model = to_gguf(checkpoint)
    assert model.metadata["tokenizer.ggml.bos_token_id"] == 1
    assert model.metadata["tokenizer.ggml.eos_token_id"] == 2
    assert model.metadata["tokenizer.ggml.padding_token_id"] == 0
    written = formats.open(write(tmp_path / "m.gguf", model))
    template = chat.from_checkpoint(written, from_checkpoint(written))
    assert template is not None
    assert model.metadata["tokenizer.chat_template"] == TEMPLATE


def test_tokens_that_end_texts_are_named_where_their_texts_say_nothing(
    folder_of: Folders, tmp_path: Path
) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    checkpoint = hub(tmp_path, folder_of("byte_fallback"), settings, 2300)

    def stops(ids: list[int]) -> frozenset[int]:
        config = json.loads((tmp_path / "config.json").read_text()) | {"eos_token_id": ids}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return from_checkpoint(
            formats.open(write(tmp_path / "m.gguf", to_gguf(checkpoint)))
        ).stop_ids

    assert stops([2, 40, 41]) == {2, 40, 41}
    with pytest.raises(UnsupportedError, match="'F', 'G', 'H'"):
        stops([2, 40, 41, 42])


def test_a_model_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    checkpoint = hub(tmp_path, tmp_path / "none", {}, 96)
    model = to_gguf(checkpoint)
    assert model.metadata["tokenizer.ggml.model"] == "no_vocab"
    with pytest.raises(NoTokenizerError):
        from_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wordpiece", "WordPiece"),
        ("wordlevel", "WordLevel"),
        ("unigram", "Unigram"),
    ],
)
def test_other_kinds_are_refused_by_name(
    name: str, message: str, folder_of: Folders, tmp_path: Path
) -> None:
    checkpoint = hub(tmp_path, folder_of(name), {"eos_token": "</s>"}, 2300)
    with pytest.raises(UnsupportedError, match=message):
        to_gguf(checkpoint)


@pytest.mark.parametrize("name", KINDS)
def test_pieces_that_llama_cpp_would_not_read_so_are_refused(
    name: str, files: Folders, tmp_path: Path
) -> None:
    # After a piece of the user's, llama.cpp has a word begin.
    message = (
        r"tokenizer: .*\[\d+.*\].*\[\d+.*\]" if name == "bpe" else r"trainer_spec|normalizer_spec"
    )
    with pytest.raises(UnsupportedError, match=message):
        to_gguf(hub(tmp_path, files(name), {}, 1200))


def test_control_tokens_of_the_settings_are_in_the_vocabulary(
    wikitext2: str, tmp_path: Path
) -> None:
    from_file, pieces = tmp_path / "hub", tmp_path / "pieces"
    from_file.mkdir()
    pieces.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(wikitext2[:100_000].splitlines()),
        model_prefix=str(pieces / "tokenizer"),
        vocab_size=900,
        num_threads=1,
        minloglevel=2,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    added: dict[str, Any] = {
        "900": {"content": "<|end|>", "special": True},
        "901": {"content": "<tool!>"},
    }
    settings: dict[str, Any] = {"bos_token": "<s>", "eos_token": "<|end|>", "legacy": True}
    settings["added_tokens_decoder"] = added
    checkpoint = hub(from_file, pieces, settings, 910)
    model = to_gguf(checkpoint)
    ours, theirs = both(checkpoint, model, tmp_path)
    text = f"a <|end|> b <tool!>c {wikitext2[SLICES[0]]}"
    for asked in (False, True):
        got, want = (t.encode(text, parse_special=asked) for t in (theirs, ours))
        assert got == want
        assert (900 in got) is asked
    assert model.metadata["tokenizer.ggml.eos_token_id"] == 900
    # As Phi 3 has it.
    added["900"]["rstrip"] = True
    (from_file / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedError, match=r"<\|end\|>"):
        to_gguf(checkpoint)
    made = vocab.of_sentencepiece(
        from_file / "tokenizer.model", read_settings(from_file), n_rows=910
    )
    assert made.texts == model.metadata["tokenizer.ggml.tokens"]


def _normalized(whole: dict[str, Any]) -> None:
    whole["normalizer"] = {"type": "NFKC"}


def _lowered(whole: dict[str, Any]) -> None:
    whole["normalizer"]["normalizers"].append({"type": "Lowercase"})


def _whole_word(whole: dict[str, Any]) -> None:
    whole["added_tokens"][-1] |= {"single_word": True, "special": False}


def _suffix(whole: dict[str, Any]) -> None:
    whole["model"]["end_of_word_suffix"] = "</w>"


def _no_bytes(whole: dict[str, Any]) -> None:
    whole["model"]["byte_fallback"] = False


def _doubled(whole: dict[str, Any]) -> None:
    node = whole["post_processor"]
    node["single"].insert(0, node["single"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_normalized, "normalizer.*pre_tokenizer.*byte_fallback"),
        (_lowered, "normalizer.*pre_tokenizer.*byte_fallback"),
        (_whole_word, "</s>"),
        (_suffix, r"model\.end_of_word_suffix"),
        (_no_bytes, "model: BPE"),
        (_doubled, r"\[1, 1, 2\]"),
    ],
)
def test_what_gguf_cannot_say_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, folder_of: Folders, tmp_path: Path
) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    checkpoint = hub(tmp_path, folder_of("byte_fallback"), settings, 2300)
    changed(tmp_path, change)
    with pytest.raises(UnsupportedError, match=message):
        to_gguf(checkpoint)


def test_more_tokens_than_rows_are_refused(folder_of: Folders, tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"\b100\b"):
        to_gguf(hub(tmp_path, folder_of("byte_fallback"), {}, 100))


def test_damaged_files_end_in_an_error_or_a_tokenizer(folder_of: Folders, tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    checkpoint = hub(tmp_path, folder_of("byte_fallback"), settings, 2300)
    good = json.loads((tmp_path / "tokenizer.json").read_text())
    strange: list[Any] = [None, 1 << 40, "x", [[]], {"type": "x"}]
    for section in ("model", "normalizer", "pre_tokenizer", "decoder", "added_tokens"):
        whole = good[section]
        keys = list(whole) if isinstance(whole, dict) else range(len(whole)) if whole else []
        for key in keys:
            for value in strange:
                copy = list(whole) if isinstance(whole, list) else dict(whole)
                copy[key] = value
                (tmp_path / "tokenizer.json").write_text(json.dumps(good | {section: copy}))
                try:
                    to_gguf(checkpoint)
                except PyflowError:
                    continue
