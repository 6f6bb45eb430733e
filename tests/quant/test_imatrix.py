"""Files of importance: written as llama.cpp writes them, and read again."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.quant.convert import convert
from pyflow.quant.imatrix import Squares, by_tensor, read_imatrix, write_imatrix
from pyflow.quant.naming import Naming, Part
from pyflow.quant.plan import Recipe

from pyflow import _core, formats
from pyflow.errors import FormatError, PyflowError

SHAPES = {
    "token_embd.weight": (30, 8),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_qkv.weight": (24, 8),
    "blk.0.ffn_up_exps.weight": (3, 4, 8),
}
NAMING = Naming({name: Part(name) for name in SHAPES}, 1, 3)
ONE = np.arange(8.0)


def squares() -> dict[str, Squares]:
    measured = [
        ("token_embd.weight", 0, 0, 0 * ONE),
        ("blk.0.attn_q.weight", 0, 5, ONE),
        *(("blk.0.attn_qkv.weight", row, 5, 2 * ONE) for row in (0, 8, 16)),
        *(
            ("blk.0.ffn_up_exps.weight", 4 * e, n, (e + 1) * ONE * (n > 0))
            for e, n in ((0, 4), (1, 0), (2, 1))
        ),
    ]
    return by_tensor(measured, SHAPES, NAMING)


def test_matrices_come_to_their_tensors() -> None:
    found = squares()
    assert set(found) == set(SHAPES) - {"token_embd.weight"}
    np.testing.assert_array_equal(found["blk.0.attn_qkv.weight"].sums, [2 * ONE])
    assert found["blk.0.attn_qkv.weight"].n_rows.tolist() == [5]
    np.testing.assert_array_equal(found["blk.0.ffn_up_exps.weight"].sums, [ONE, 0 * ONE, 3 * ONE])
    assert found["blk.0.ffn_up_exps.weight"].n_rows.tolist() == [4, 0, 1]


def test_experts_in_tensors_of_their_own_come_to_one() -> None:
    parts = {f"up.{e}": Part("blk.0.ffn_up_exps.weight", e) for e in range(3)}
    kept = {"out": Part("blk.0.attn_output.weight")}
    measured = [(f"up.{e}", 0, 4 - e, (e + 1) * ONE) for e in (2, 0)]
    measured += [("out", 0, 4, ONE), ("unknown", 0, 4, ONE)]
    shapes = dict.fromkeys(["up.0", "up.1", "up.2", "out", "unknown"], (4, 8))
    found = by_tensor(measured, shapes, Naming(parts | kept, 1, 3, {"out": "for a test"}))
    assert set(found) == {"blk.0.ffn_up_exps.weight", "blk.0.attn_output.weight"}
    squares = found["blk.0.ffn_up_exps.weight"]
    np.testing.assert_array_equal(squares.sums, [ONE, 0 * ONE, 3 * ONE])
    assert squares.n_rows.tolist() == [4, 0, 2]


def test_a_row_that_is_stored_as_a_vector_is_a_matrix() -> None:
    name = "blk.0.ffn_gate_inp_shexp.weight"
    found = by_tensor([(name, 0, 5, ONE)], {name: (8,)}, Naming({name: Part(name)}, 1, 3))
    np.testing.assert_array_equal(found[name].sums, [ONE])


def test_what_is_stored_the_other_way_round_has_the_columns_of_its_inputs() -> None:
    name = "h.0.attn.c_attn.weight"
    naming = Naming({name: Part("blk.0.attn_qkv.weight")}, 1, 0, {name: "for a test"})
    found = by_tensor([(name, row, 5, ONE) for row in (0, 8, 16)], {name: (8, 24)}, naming)
    np.testing.assert_array_equal(found["blk.0.attn_qkv.weight"].sums, [ONE])
    assert found["blk.0.attn_qkv.weight"].n_rows.tolist() == [5]


def test_no_matrix_at_all_is_an_error() -> None:
    for measured in ([], [("unknown", 0, 4, ONE)], [("blk.0.attn_q.weight", 0, 0, 0 * ONE)]):
        with pytest.raises(FormatError):
            by_tensor(measured, SHAPES | {"unknown": (4, 8)}, NAMING)


@pytest.mark.parametrize("value", [np.nan, np.inf, 6e30])
def test_sums_that_are_no_importance_are_refused(value: float) -> None:
    with pytest.raises(FormatError, match=r"'blk\.0\.attn_q\.weight'"):
        by_tensor([("blk.0.attn_q.weight", 0, 5, np.append(ONE[1:], value))], SHAPES, NAMING)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "i.gguf"
    write_imatrix(target, squares(), datasets=["a.txt", "b"], n_chunks=7, chunk_size=512)
    return target


def test_what_is_written_is_read_again(path: Path) -> None:
    found = read_imatrix(path)
    assert (found.n_chunks, found.datasets) == (7, ("a.txt", "b"))
    np.testing.assert_allclose(found.columns["blk.0.attn_q.weight"], [ONE / 5])
    # An expert that nothing was measured of counts alike in all columns.
    np.testing.assert_allclose(
        found.columns["blk.0.ffn_up_exps.weight"], [ONE / 4, np.ones(8), 3 * ONE]
    )


@pytest.mark.parametrize(
    ("n_rows", "largest", "message"),
    [
        (0, 1, "'a.counts': .*found 0"),
        (-1, 1, "'a.counts': .*found -1"),
        (1, 2e30, "'a.in_sum2': .*1e[+]30, found 0"),
        (1, -1, "'a.in_sum2': .*1e[+]30, found -1"),
        (1, np.nan, "'a.in_sum2': .*1e[+]30, found nan"),
    ],
)
def test_what_is_no_importance_is_refused_when_it_is_read(
    tmp_path: Path, n_rows: int, largest: float, message: str
) -> None:
    made = tmp_path / "i.gguf"
    squares = Squares(np.array([[0.0, largest]]), np.array([n_rows]))
    write_imatrix(made, {"a": squares}, datasets=[], n_chunks=1, chunk_size=4)
    with pytest.raises(FormatError, match=f"i.gguf: tensor {message}"):
        read_imatrix(made)


def moments_file(
    target: Path, holders: list[str] | None = None, size: int | None = None, diagonal: float = 1
) -> Path:
    """A file with moments of two matrices of one input; holders, size: what it says of them."""
    one = Squares(np.ones((1, 32)), np.array([4]))
    found = {"blk.0.attn_q.weight": one, "blk.0.attn_k.weight": one}
    found["up"] = Squares(np.ones((4, 32)), np.ones(4, np.int64))
    sums = np.zeros(_core.Feedback.size(32) if size is None else size, np.float32)
    if size is None:
        sums[[*range(0, 256, 17), *range(256 + 16, 768, 33)]] = diagonal
    names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight"]
    how: dict[str, Any] = {"datasets": [], "n_chunks": 1, "chunk_size": 4}
    write_imatrix(target, found, moments=[(names, sums), (["unknown"], sums)], **how)
    if holders is not None:
        rewrite_entry(target, "imatrix.moments", gguf_writer.entry(holders))
    return target


def rewrite_entry(target: Path, key: str, entry: bytes) -> None:
    checkpoint = formats.open(target)
    entries = dict(_core.GgufFile(str(target)).entries) | {key: entry}
    arrays = {t.name: np.array(checkpoint.array(t.name)) for t in checkpoint.tensors}
    tensors = [
        gguf_writer.NewTensor(name, array.shape, 0, array.nbytes) for name, array in arrays.items()
    ]
    with replacing(target) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors)
        for array in arrays.values():
            writer.write(array.reshape(-1).view(np.uint8))
            writer.end_tensor()
        writer.close()


@pytest.mark.parametrize("entry", [struct.pack("<IQ", 10, 1 << 40), struct.pack("<Ii", 5, -1)])
def test_a_number_of_chunks_that_cannot_be_is_left_out(tmp_path: Path, entry: bytes) -> None:
    made = moments_file(tmp_path / "i.gguf")
    rewrite_entry(made, "imatrix.chunk_count", entry)
    assert read_imatrix(made).n_chunks == 0


def test_matrices_of_one_input_share_its_moments(tmp_path: Path) -> None:
    found = read_imatrix(moments_file(tmp_path / "i.gguf"))
    q, k = (found.moments[f"blk.0.attn_{role}.weight"] for role in "qk")
    assert q.name == k.name == "blk.0.attn_q.weight.in_moments"
    assert len(found.moments) == 2
    assert q.n_cols == 32
    q.feedback()
    with pytest.raises(FormatError, match="diagonal"):
        replace(k, squares=2 * k.squares).check()
    assert read_imatrix(moments_file(tmp_path / "i.gguf", [])).moments == {}


@pytest.mark.parametrize(
    ("holders", "size", "message"),
    [
        (["blk.0.attn_q.weight"], None, "imatrix.moments: "),
        (["blk.0.attn_q.weight=up"], None, "'blk.0.attn_q.weight=up'"),
        (["x=blk.0.attn_q.weight"], None, "'x=blk.0.attn_q.weight'"),
        (
            ["up=blk.0.attn_q.weight"],
            None,
            "'up' .* 4 x",
        ),
        (None, 700, r"F32 \(768,\) .* F32 \(700,\)"),
    ],
)
def test_moments_that_are_not_of_the_matrices_are_refused(
    tmp_path: Path, holders: list[str] | None, size: int | None, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        read_imatrix(moments_file(tmp_path / "i.gguf", holders, size))


def test_moments_that_no_inputs_have_are_refused_by_the_file_and_tensor(tmp_path: Path) -> None:
    for diagonal in (0, -1, 2, np.inf):
        other = read_imatrix(moments_file(tmp_path / "o.gguf", diagonal=diagonal))
        with pytest.raises(FormatError, match="diagonal"):
            other.moments["blk.0.attn_q.weight"].feedback()
    target = moments_file(tmp_path / "i.gguf")
    with target.open("r+b") as file:
        data = bytearray(file.read())
        at = formats.open(target).native.tensor("blk.0.attn_q.weight.in_moments").offset
        data[at : at + 4] = np.float32(np.nan).tobytes()
        file.seek(0)
        file.write(data)
    found = read_imatrix(target).moments["blk.0.attn_k.weight"]
    with pytest.raises(
        FormatError, match=r"i.gguf: tensor 'blk.0.attn_q.weight.in_moments': .*diagonal"
    ):
        found.feedback()


def test_it_is_no_model(path: Path) -> None:
    with pytest.raises(FormatError, match="--imatrix"):
        convert(path, path.with_name("out"), Recipe("Q8_0"))


def test_the_file_is_one_of_llama_imatrix_by_its_own_package(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    values = {key: reader.get_field(key).contents() for key in reader.fields}
    assert values["general.type"] == "imatrix"
    assert values["imatrix.datasets"] == ["a.txt", "b"]
    assert (values["imatrix.chunk_count"], values["imatrix.chunk_size"]) == (7, 512)
    tensors = {t.name: t for t in reader.tensors}
    sums = tensors["blk.0.ffn_up_exps.weight.in_sum2"]
    counts = tensors["blk.0.ffn_up_exps.weight.counts"]
    assert sums.tensor_type == counts.tensor_type == gguf.GGMLQuantizationType.F32
    assert sums.shape.tolist() == [8, 3]
    assert counts.shape.tolist() == [1, 3]
    np.testing.assert_array_equal(counts.data.reshape(-1), [4, 0, 1])


def test_what_has_come_meanwhile_is_not_replaced_unless_that_is_wanted(tmp_path: Path) -> None:
    target = tmp_path / "i.gguf"
    target.write_text("mine")
    how: dict[str, Any] = {"datasets": ["a"], "n_chunks": 7, "chunk_size": 512}
    with pytest.raises(PyflowError, match=re.escape(str(target))):
        write_imatrix(target, squares(), **how, replace=False)
    assert target.read_text() == "mine"
    write_imatrix(target, squares(), **how)
    assert read_imatrix(target).n_chunks == 7
