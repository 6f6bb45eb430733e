"""`pyflow.formats.open`: what is a checkpoint opens, what is none is told apart."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import lzma
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyflow.formats
import pytest

from pyflow import errors

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n"
LOOKALIKES: dict[str, tuple[bytes, str, str]] = {
    "gzip": (gzip.compress(b"GGUF"), "a gzip archive", "unpack"),
    "bzip2": (bz2.compress(b"GGUF"), "a bzip2 archive", "unpack"),
    "xz": (lzma.compress(b"GGUF"), "an xz archive", "unpack"),
    "page": (b"\xef\xbb\xbf\n <!DOCTYPE html><html>", "a web page", "download it again"),
    "xml": (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "a web page", "download it again"),
    "lfs": (LFS, "a git-lfs pointer", "git lfs pull"),
    "config": (json.dumps({"model_type": "llama"}).encode(), "JSON text", "the folder"),
    "ggml": (b"lmgg" + bytes(64), "a GGML file", "convert"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file", "convert"),
    "zeros": (bytes(5000), "zeros", "download it again"),
    "text": ("Zürich\n".encode(), "a text file", "path of a checkpoint"),
    "cut_text": (b"x" * 4095 + "ü".encode(), "a text file", "path of a checkpoint"),
    "pickle0": (pickle.dumps({"w": [1.5]}, 0), "perhaps a pickle of protocol 0", "safetensors"),
    "pickle0_class": (pickle.dumps(Path("x"), 0), "perhaps a pickle of protocol 0", "torch.save"),
    "pickle0_call": (b"cos\nsystem\n(S'ls'\ntR.", "perhaps a pickle of protocol 0", "torch.save"),
    "words": (b"cat\ndog\nbird\n", "a text file", "path of a checkpoint"),
    "latin1": (b"Z\xfcrich", "bytes 5a fc 72 69 63 68 of no format", "download it again"),
    "noise": (b"\x7fELF\2\1\1\0" + bytes(8), "bytes 7f 45 4c 46 02 01 01 00", "download it again"),
    "reversed": (b"FUGG\0\0\0\3", "bytes 46 55 47 47", "download it again"),
    "one_byte": (b"\xff", "bytes ff of no format", "download it again"),
    "short_magic": (b"GGU", "bytes 47 47 55 of no format", "download it again"),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_is_no_checkpoint_is_told_apart(name: str, tmp_path: Path) -> None:
    content, what, advice = LOOKALIKES[name]
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(content)
    with pytest.raises(errors.FormatError) as caught:
        pyflow.formats.open(path)
    start = re.escape(
        f"{path}: expected a checkpoint (GGUF, safetensors, PyTorch, llama2.c, Marian or "
        f"CTranslate2), found {what}"
    )
    assert re.fullmatch(rf"{start}.*; .*{advice}.*", str(caught.value)), caught.value


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, words in {
        "none": "none",
        "": "checkpoint",
        "pipe": "pipe: .* pipe",
        "empty": r"empty.*0 bytes",
    }.items():
        with pytest.raises(errors.FormatError, match=words):
            pyflow.formats.open(tmp_path / name)


def test_a_gguf_file_is_a_checkpoint_whatever_its_name(corpus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(corpus.VALID["version_3"])
    for given in (path, str(path)):
        checkpoint = pyflow.formats.open(given)
        assert checkpoint.path == path
        assert checkpoint.nbytes == path.stat().st_size
        assert checkpoint.metadata is checkpoint.native.metadata
        assert [t.name for t in checkpoint.tensors] == [t.name for t in checkpoint.native.tensors]
        with pytest.raises(dataclasses.FrozenInstanceError):
            checkpoint.nbytes = 0  # type: ignore[misc]


def test_a_broken_gguf_file_is_refused_as_one(corpus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(corpus.VALID["version_3"][:100])
    with pytest.raises(errors.FormatError, match=r"x\.gguf: header: .* byte 8"):
        pyflow.formats.open(path)


def test_a_real_model_opens(model_path: Callable[[str], Path]) -> None:
    checkpoint = pyflow.formats.open(model_path("smollm2"))
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert len(checkpoint.tensors) == 272
    assert all(t.supported for t in checkpoint.tensors)
