"""What folders say of their tokenizers beside the vocabulary."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from pyflow.errors import FormatError
from pyflow.tokenizer import Tokenizer, from_folder

Make = Callable[..., Tokenizer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(config, name=content, ...): of a vocabulary of letters, <|end|> and <tool>, with files
    beside it."""

    def make_(config: object = None, n_rows: int = 0, **beside: object) -> Tokenizer:
        for old in tmp_path.iterdir():
            old.unlink()
        texts = [*"abcdef<>|", "<s>", "</s>"]
        library = Library(BPE({text: i for i, text in enumerate(texts)}, []))
        library.decoder = Fuse()
        library.add_tokens([AddedToken("<|end|>", special=True), AddedToken("<tool>")])
        library.save(str(tmp_path / "tokenizer.json"))
        files = {"tokenizer_config": config, **beside}
        for name, content in files.items():
            if content is not None:
                (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return from_folder(tmp_path, n_rows=n_rows)

    return make_


def token(content: str, **flags: bool) -> dict[str, Any]:
    known = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"content": content, **known, **flags}


def test_without_further_files_tokens_have_no_role(make: Make) -> None:
    tokenizer = make()
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, False)
    assert tokenizer.n_vocab == 13
    assert tokenizer.stop_ids == {11}  # by its name


def test_roles_come_in_one_word_or_in_many(make: Make) -> None:
    config = {"bos_token": "<s>", "eos_token": {**token("</s>"), "__type": "AddedToken"}}
    tokenizer = make(config)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (9, 10)
    assert tokenizer.stop_ids == {10, 11}
    # What has a role is a control token, though the vocabulary has it as any other.
    assert tokenizer.is_control(9)
    assert tokenizer.encode("a<s>", parse_special=True) == [0, 9]
    assert 9 not in tokenizer.encode("a<s>")


def test_older_folders_name_roles_in_a_file_of_their_own(make: Make) -> None:
    tokenizer = make({"bos_token": "a"}, special_tokens_map={"bos_token": "<s>"})
    assert tokenizer.bos_id == 9
    new = make(
        {"bos_token": "<s>", "added_tokens_decoder": {}}, special_tokens_map={"bos_token": "a"}
    )
    assert new.bos_id == 9


def test_tokens_are_added_and_changed(make: Make) -> None:
    changed = {"12": token("<tool>", special=True), "13": token("<new>", lstrip=True)}
    tokenizer = make({"added_tokens_decoder": changed})
    assert tokenizer.n_vocab == 14
    assert tokenizer.encode("a   <new>b") == [0, 13, 1]
    assert 12 not in tokenizer.encode("<tool>")
    assert tokenizer.encode("<tool>", parse_special=True) == [12]
    old = make(added_tokens={"<old>": 13})
    assert old.encode("a<old>") == [0, 13]


def test_lists_of_special_tokens_make_control_tokens(make: Make) -> None:
    for config in (
        {"additional_special_tokens": ["<tool>"]},
        {"extra_special_tokens": {"tool": "<tool>"}},
        {"extra_special_tokens": [token("<tool>")]},
    ):
        assert make(config).is_control(12)


def test_places_of_the_embedding_without_a_token_stand_for_nothing(make: Make) -> None:
    tokenizer = make(n_rows=100)
    assert tokenizer.n_vocab == 13
    assert tokenizer.decode([0, 99, 1]) == "ab"
    assert tokenizer.detokenizer().feed(99) == ""
    assert not tokenizer.is_control(99)


def test_more_tokens_may_end_a_generation(make: Make, tmp_path: Path) -> None:
    make()
    assert from_folder(tmp_path, stop_ids=[3]).stop_ids == {3, 11}
    with pytest.raises(FormatError, match=r"token 13 .*13"):
        from_folder(tmp_path, stop_ids=[13])


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        from_folder(tmp_path)


WRONG: list[tuple[object, str]] = [
    ([], "expected `object`, got `array`"),
    ({"bos_token": 5}, "at `$.bos_token`"),
    ({"bos_token": {"text": "a"}}, "`content`"),
    ({"added_tokens_decoder": []}, "at `$.added_tokens_decoder`"),
    ({"added_tokens_decoder": {"x": token("a")}}, "expected a token id, found 'x'"),
    ({"added_tokens_decoder": {"9" * 30: token("a")}}, "expected a token id"),
]


@pytest.mark.parametrize(("config", "message"), WRONG, ids=range(len(WRONG)))
def test_a_broken_config_is_a_format_error_that_names_the_field(
    config: object, message: str, make: Make, tmp_path: Path
) -> None:
    with pytest.raises(FormatError) as caught:
        make(config)
    assert str(caught.value).startswith(f"{tmp_path}/tokenizer_config.json: ")
    assert message in str(caught.value)
