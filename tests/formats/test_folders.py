"""Folders whose files disagree, or are not what their names say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from pyflow.formats import open as open_checkpoint
from safetensors.numpy import save_file

from pyflow.errors import FilesWarning, FormatError
from pyflow.specs import describe

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n"
NAMES = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = "model.safetensors.index.json"


def shard(path: Path, **values: float) -> None:
    save_file({name: np.full(3, x, np.float32) for name, x in values.items()}, path)


def values(folder: Path) -> dict[str, float]:
    checkpoint = open_checkpoint(folder)
    return {t.name: float(checkpoint.array(t.name)[0]) for t in checkpoint.tensors}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Tensors a and b in the first shard, c in the second."""
    shard(tmp_path / NAMES[0], a=1, b=2)
    shard(tmp_path / NAMES[1], c=3)
    write_index(tmp_path, {"a": NAMES[0], "b": NAMES[0], "c": NAMES[1]})
    return tmp_path


def write_index(folder: Path, places: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


WHOLE = {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"a": NAMES[1], "b": NAMES[0], "c": NAMES[1]}, r"1 tensor in another shard.*'a'"),
        ({"a": NAMES[0], "c": NAMES[1], "x": NAMES[0]}, r"1 tensor in no shard.*'x'"),
    ],
)
def test_an_index_that_is_wrong_about_tensors_is_a_warning(
    sharded: Path, places: dict[str, str], said: str
) -> None:
    write_index(sharded, places)
    with pytest.warns(FilesWarning, match=said):
        assert values(sharded) == WHOLE


def test_a_tensor_in_two_shards_must_be_the_same(sharded: Path) -> None:
    shard(sharded / NAMES[1], c=3, b=2)
    with pytest.warns(FilesWarning, match=r"two shards.*'b'"):
        assert values(sharded) == WHOLE
    shard(sharded / NAMES[1], c=3, b=4)
    with pytest.raises(FormatError, match=rf"{NAMES[1]}.*'b'.*{NAMES[0]}"):
        open_checkpoint(sharded)


def test_parts_without_their_index_open_by_their_names(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert values(sharded) == WHOLE
    assert values(sharded / NAMES[0]) == WHOLE
    assert values(sharded / NAMES[1]) == {"c": 3}
    (sharded / NAMES[0]).rename(sharded / "away")
    with pytest.raises(FormatError, match=rf"2 parts.*missing: {NAMES[0]}"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("why", ["missing", "link", "pointer"])
def test_shards_that_cannot_be_read_are_named(sharded: Path, why: str) -> None:
    path = sharded / NAMES[1]
    path.unlink()
    if why == "link":
        path.symlink_to("../blobs/none")
    if why == "pointer":
        path.write_text(POINTER)
    word = {"missing": "is missing", "link": r"\.\./blobs/none", "pointer": "git lfs pull"}[why]
    with pytest.raises(FormatError, match=rf"1 of 2 shards.*{NAMES[1]}.*{word}"):
        open_checkpoint(sharded)


def test_an_index_that_is_a_pointer_is_told_apart(sharded: Path) -> None:
    (sharded / INDEX).write_text(POINTER)
    with pytest.raises(FormatError, match="git lfs pull"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    "other",
    [
        NAMES[0],
        "pytorch_model.bin",
        "model.fp16.safetensors",
        "consolidated.safetensors",
        "adapter_model.safetensors",
        "other.gguf",
    ],
)
def test_the_file_that_transformers_takes_wins_and_others_are_told(
    other: str, tmp_path: Path
) -> None:
    shard(tmp_path / "model.safetensors", a=1)
    shard(tmp_path / other, a=2)
    with pytest.warns(FilesWarning, match=rf"left aside: {other}"):
        assert values(tmp_path) == {"a": 1}


@pytest.mark.filterwarnings("error")
def test_what_trainers_and_systems_leave_is_no_checkpoint(tmp_path: Path) -> None:
    shard(tmp_path / "mine.bin", a=1)
    for name in ("training_args.bin", "optimizer.bin", "rng_state_0.pth", "._mine.bin"):
        shard(tmp_path / name, a=2)
    assert values(tmp_path) == {"a": 1}


def test_an_index_wins_over_shards_of_another_one(sharded: Path) -> None:
    shard(sharded / "model-00001-of-00003.safetensors", a=7)
    with pytest.warns(FilesWarning, match="left aside: model-00001-of-00003"):
        assert values(sharded) == WHOLE


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("../none")
    with pytest.raises(FormatError, match=r"model\.safetensors, a link to \.\./none"):
        open_checkpoint(tmp_path)
    shard(tmp_path / "pytorch_model.bin", a=2)
    with pytest.warns(FilesWarning, match=r"model\.safetensors is a link to \.\./none"):
        assert values(tmp_path) == {"a": 2}
    (tmp_path / "config.json").symlink_to("../none")
    with pytest.raises(FormatError, match=r"config\.json: is a link to \.\./none"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(POINTER)
    with pytest.raises(FormatError, match=r"config\.json: .*git lfs pull"):
        open_checkpoint(tmp_path)


def test_an_adapter_or_an_unfinished_download_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.incomplete").touch()
    with pytest.raises(FormatError, match=r"unfinished.*model\.safetensors\.incomplete"):
        open_checkpoint(tmp_path)
    shard(tmp_path / "adapter_model.safetensors", a=1)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(FormatError, match=r"adapter of org/base; merge"):
        open_checkpoint(tmp_path)
    shutil.copy(tmp_path / "adapter_model.safetensors", tmp_path / "model.safetensors")
    with pytest.warns(FilesWarning) as told:
        assert values(tmp_path) == {"a": 1}
    said = " ".join(str(one.message) for one in told)
    assert "left aside: adapter_model" in said
    assert "adapter_config.json" in said


def test_an_index_of_other_weights_is_told(tmp_path: Path) -> None:
    shard(tmp_path / "model.safetensors", a=1)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert values(tmp_path) == {"a": 1}
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    with pytest.warns(FilesWarning, match=f"{index.name}.*model-00001-of-00002"):
        assert values(tmp_path) == {"a": 1}


@pytest.mark.parametrize("name", ["config.json", "pyflow.toml"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_description_that_is_no_file_is_told(name: str, kind: str, tmp_path: Path) -> None:
    shard(tmp_path / "model.safetensors", a=1)
    path = tmp_path / name
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("no")}[
        kind
    ]()
    with pytest.raises(FormatError, match=str(path)):
        describe(open_checkpoint(tmp_path))
