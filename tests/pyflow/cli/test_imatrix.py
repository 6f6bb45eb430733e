"""`pyflow imatrix` on a real model: what is measured, what it helps, and what is refused."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyflow.quant import convert, dequantize
from pyflow.quant import wikitext2 as known_text
from pyflow.quant.imatrix import read_imatrix

from pyflow import formats
from pyflow.cli import main
from pyflow.tokenizer import Tokenizer

from ..tiny_models import write_model
from .quantize.quantizing import off_grid

pytestmark = pytest.mark.model
TEXT = Path(__file__).parents[3] / "docs" / "architecture.md"
N_CTX = 64


def test_texts_that_were_not_read_are_told_and_not_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, target = tmp_path / "model.gguf", tmp_path / "i.gguf"
    write_model(model, n_layers=1, window=0, has_tokenizer=True)
    texts = [tmp_path / "first.txt", tmp_path / "second.txt"]
    for text in texts:
        text.write_text("a b c d " * 20)
    args = ["imatrix", "-m", str(model), "-f", str(texts[0]), "-f", str(texts[1]), "-c", "8"]
    assert main([*args, "-o", str(target), "--chunks", "1"]) == 0
    assert f"--chunks 1 left out {texts[1]}" in capsys.readouterr().err
    assert read_imatrix(target).datasets == ("first.txt",)


def test_sums_are_those_of_the_inputs(
    capsys: pytest.CaptureFixture[str],
    model_path: Callable[[str], Path],
    tokenizer_of: Callable[[str], Tokenizer],
    tmp_path: Path,
) -> None:
    target = tmp_path / "i.gguf"
    args = ["imatrix", "-m", "smollm2", "-f", str(TEXT), "-o", str(target), "-c", str(N_CTX)]
    assert main([*args, "--chunks", "4", "--process-output", "--moments", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # Seven matrices a layer, and the one that is embedding and output.
    assert (told["n_matrices"], told["n_with_moments"], told["chunks"]) == (211, 211, 4)
    found = read_imatrix(target)
    assert len({moments.name for moments in found.moments.values()}) == 5 * 30 + 1
    for name in ("blk.0.attn_v.weight", "blk.29.ffn_down.weight", "token_embd.weight"):
        sums, n_cols = found.moments[name].sums, found.moments[name].n_cols
        rows = np.arange(n_cols)  # each in 16 of 16 more columns than the last
        diagonal = sums[
            128 * (rows // 16) * (rows // 16 + 1) + rows % 16 * 16 * (rows // 16 + 1) + rows
        ]
        # Values are measured for each of nine heads, in sixteen rows of 64.
        n_rows = 4 * 16 * 9 if "attn_v" in name else 4 * N_CTX
        np.testing.assert_allclose(diagonal / n_rows, found.columns[name][0], rtol=1e-4)
    assert found.datasets == (TEXT.name,)

    # What the first layer's queries are multiplied by: the norm of the embedding.
    checkpoint = formats.open(model_path("smollm2"))
    rows = np.asarray(tokenizer_of("smollm2").encode(TEXT.read_text()))[: 4 * N_CTX]
    record = checkpoint.native.tensor("token_embd.weight")
    embedding = np.asarray(checkpoint.native.data(record.name)).reshape(record.shape[0], -1)
    x = dequantize(embedding[rows], record.dtype).astype(np.float64)
    x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)
    x *= np.asarray(checkpoint.array("blk.0.attn_norm.weight"), np.float64)
    want = np.square(x).mean(0)
    alone = tmp_path / "alone.gguf"
    assert main([*args[:6], str(alone), *args[7:], "--chunks", "4"]) == 0
    for measured, roles in ((found, "qk"), (read_imatrix(alone), "qkv")):
        for role in roles:
            got = measured.columns[f"blk.0.attn_{role}.weight"][0]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * want.max())

    capsys.readouterr()
    assert main(args) == 1
    assert "--force" in capsys.readouterr().err


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model beside a text for it, text.txt."""
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 8)
    return write_model(tmp_path / "tiny.gguf", n_layers=2, window=0, has_tokenizer=True)


def imatrix(model: Path, target: str | Path, *more: str) -> int:
    text = str(model.parent / "text.txt")
    return main(["imatrix", "-m", str(model), "-f", text, "-o", str(target), "-c", "64", *more])


def test_moments_bring_the_outputs_nearer(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    plain, fed_back = tmp_path / "plain", tmp_path / "fed_back"
    assert imatrix(tiny, tmp_path / "i") == 0
    assert "warning: " not in capsys.readouterr().err
    assert imatrix(tiny, tmp_path / "m", "--moments") == 0
    assert "512" in capsys.readouterr().err
    assert (tmp_path / "m").stat().st_size > (tmp_path / "i").stat().st_size
    errors = []
    for by, target in ((tmp_path / "i", plain), (tmp_path / "m", fed_back)):
        how = ["--type", "Q4_B32", "--pure", "--imatrix", str(by), "--json"]
        assert main(["quantize", str(tiny), f"{target}.gguf", *how]) == 0
        out, err = capsys.readouterr()
        errors.append(json.loads(out)["roles"]["attn_output"]["relative_error"])
        with_moments = by.name == "m"
        assert ("14 matrices use moments" in err) == with_moments
        assert ("moments of 2 matrices overfit" in err) == with_moments
        entries = formats.open(f"{target}.gguf").metadata
        assert entries.get("pyflow.moments.entries_count") == (14 if with_moments else None)
    assert errors[1] < 0.9 * errors[0]


def test_nothing_that_is_read_is_replaced(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    soft.symlink_to(tiny)
    hard.hardlink_to(tmp_path / "text.txt")
    before = tiny.read_bytes()
    for target in (tiny, soft, tmp_path / "text.txt", hard):
        assert imatrix(tiny, target, "--force") == 1
        assert "expected a file other than the source" in capsys.readouterr().err
    assert tiny.read_bytes() == before
    assert imatrix(tiny, tmp_path / "out") == 0
    assert imatrix(tiny, tmp_path / "out") == 1
    assert imatrix(tiny, tmp_path / "out", "--force") == 0


def test_a_model_with_nan_is_refused_by_the_first_matrix_that_meets_it(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    tensors = {t.name: t for t in formats.open(tiny).tensors}
    with tiny.open("r+b") as file:
        file.seek(tensors["blk.1.attn_norm.weight"].offset)
        file.write(np.float32(np.nan).tobytes())
    assert imatrix(tiny, tmp_path / "out") == 3
    assert f"{tiny}: tensor 'blk.1.attn_" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_told_before_the_text_is_read(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").unlink()
    os.mkfifo(tmp_path / "fifo")
    for target, code, message in (
        (tmp_path / "no" / "out", 1, f"there is no folder {tmp_path / 'no'}; make it first"),
        (tmp_path / "fifo", 1, "is there and is no file that could be replaced"),
        ("/dev/null", 1, "is there and is no file that could be replaced"),
        ("/proc/i.gguf", 1, "error: /proc/i.gguf: "),
        ("-", 2, "expected a name, found '-'"),
        ("", 2, "expected a name, found none"),
    ):
        for more in ([], ["--force"]):
            assert imatrix(tiny, target, *more) == code
            told = capsys.readouterr().err
            assert message in told
            assert "--force" not in told
    assert (tmp_path / "fifo").is_fifo()


def test_a_full_disk_is_told_after_the_first_chunk(
    capsys: pytest.CaptureFixture[str],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage: Any = lambda _: type("usage", (), {"free": 1000})  # noqa: E731
    monkeypatch.setattr(convert.shutil, "disk_usage", usage)
    monkeypatch.setattr("pyflow.quant.imatrix.write_imatrix", None)  # it does not come to that
    assert imatrix(tiny, tmp_path / "out", "--moments") == 4
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path / 'out'}: expected ")
    assert "found 1,000" in told


def test_importance_that_is_damaged_is_to_be_measured_again(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    assert imatrix(tiny, whole) == 0
    quantize = ["quantize", str(tiny), str(tmp_path / "out.gguf"), "--type", "Q8_0", "--imatrix"]
    for damaged in (whole.read_bytes()[:-1000], whole.read_bytes()[:10], b"", b"\x07" * 4000):
        (tmp_path / "damaged").write_bytes(damaged)
        capsys.readouterr()
        assert main([*quantize, str(tmp_path / "damaged")]) == 3
        assert "'pyflow imatrix'" in capsys.readouterr().err
    assert main([*quantize, ""]) == 3
    assert "found none" in capsys.readouterr().err


def test_importance_of_columns_that_were_moved_otherwise_is_refused(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    base, plain, turned = (tmp_path / name for name in ("base.gguf", "plain", "turned"))
    off_grid(tiny, base, "--rotate", "1", "--type", "F32")
    assert imatrix(tiny, plain) == imatrix(base, turned) == 0
    capsys.readouterr()
    for model, own, others in ((tiny, plain, turned), (base, turned, plain)):
        args = ["quantize", str(model), str(tmp_path / "out.gguf"), "--type", "Q8_0", "--force"]
        assert main([*args, "--imatrix", str(others)]) == 3
        told = capsys.readouterr().err
        assert f"{others}: expected importance of a model with" in told
        assert "pyflow.rotation_seed 1" in told
        assert main([*args, "--imatrix", str(own)]) == 0


def test_the_test_text_is_refused(
    capsys: pytest.CaptureFixture[str], tiny: Path, wikitext2: str
) -> None:
    np.testing.assert_array_equal(known_text.marks(wikitext2), known_text._kept())
    lines = wikitext2.split("\n")
    for begin in (0, 1000, 4000):
        passage = "\r\n".join(lines[begin : begin + 60])
        joined = re.sub(r" @(.)@ ", r"\1", passage).replace(" ,", ",").replace(" .", ".")
        for given in (passage, joined.upper(), "\n".join(textwrap.wrap(passage, 60))):
            (tiny.parent / "text.txt").write_text(given)
            assert imatrix(tiny, tiny.parent / "o") == 2
            assert "has a passage of the test split of WikiText-2" in capsys.readouterr().err
    for other in ("", "The same words over and over. " * 500, " ".join(map(str, range(50_000)))):
        assert not known_text.has_passage(other)
    assert not (tiny.parent / "o").exists()


def test_passages_are_known_however_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.read_text()
    known = known_text.marks(text)
    monkeypatch.setattr(known_text, "_kept", lambda: known)
    passage = text[len(text) // 2 :][:8000]
    for given in (passage, passage.upper(), "\n".join(textwrap.wrap(passage, 50))):
        assert known_text.has_passage(f"Before. {given} After.")
    assert not known_text.has_passage(" ".join(reversed(passage.split())))


def test_a_text_that_is_too_short_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "short"
    text.write_text("Hello.")
    assert main(["imatrix", "-m", "smollm2", "-f", str(text), "-o", str(tmp_path / "o")]) == 2
    assert f"{text}: expected a text of at least 1,024 tokens" in capsys.readouterr().err
