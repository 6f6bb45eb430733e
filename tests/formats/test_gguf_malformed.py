"""Whatever a GGUF file holds, it is loaded or refused by an error that says what is wrong where."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pyflow import _core, errors


def refusal(path: Path, data: bytes) -> errors.PyflowError:
    path.write_bytes(data)
    with pytest.raises(errors.PyflowError) as caught:
        _core.GgufFile(path)
    return caught.value


def shown(name: str) -> str:
    """A name as people are shown it: what could move a terminal's cursor is spelt out."""
    spelt = re.compile(r"[\x00-\x1f\x7f-\x9f\\\udc80-\udcff]")
    return spelt.sub(
        lambda found: "".join(
            f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape")
        ),
        name,
    )


def use(file: _core.GgufFile) -> None:
    """Touch everything that an open file offers."""
    for s in file.metadata.values():
        repr(s)
    for t in file.tensors:
        assert shown(t.name) in repr(t)
        if t.nbytes:
            file.data(t.name).sum()


def check(path: Path, case: Any) -> None:
    error = refusal(path, case.data)
    message = str(error)
    assert type(error).__name__ == case.error
    shape = rf"{re.escape(str(path))}: .+ at byte [\d,]+: expected .+, found .+; .+"
    assert re.fullmatch(shape, message), message
    for words in case.mentions:
        assert words in message
    assert any(words in message for words in case.any_of), message


def test_a_malformed_file_is_refused_by_name_field_and_offset(
    malformed: Any, tmp_path: Path
) -> None:
    check(tmp_path / f"{malformed.name}.gguf", malformed)


def test_a_file_cut_short_is_refused_where_it_ends(cut: Any, tmp_path: Path) -> None:
    check(tmp_path / "cut.gguf", cut)
    assert "download it again" in str(refusal(tmp_path / "cut.gguf", cut.data))


def test_the_corpus_is_no_smaller_than_promised(corpus: ModuleType) -> None:
    names = [case.name for case in corpus.CASES + corpus.CUTS]
    assert len(corpus.CASES) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_every_prefix_of_a_valid_file_is_refused(corpus: ModuleType, tmp_path: Path) -> None:
    whole = corpus.VALID["version_3"]
    # Of the last tensor only the first byte is needed: its type, hence its size, is unknown.
    needed = len(whole) - 31
    for n in range(1, needed):
        refusal(tmp_path / "prefix.gguf", whole[:n])
    (tmp_path / "prefix.gguf").write_bytes(whole[:needed])
    use(_core.GgufFile(tmp_path / "prefix.gguf"))


@pytest.mark.parametrize(("entry_bytes", "field"), [(25, "tensor count"), (14, "metadata count")])
def test_counts_are_bounded_however_large_the_file(
    entry_bytes: int, field: str, builder: ModuleType, tmp_path: Path
) -> None:
    count = (1 << 20) + 1
    counts = {"tensor count": "n_tensors", "metadata count": "n_entries"}
    path = tmp_path / "sparse.gguf"
    path.write_bytes(builder.Gguf(**{counts[field]: count}).build())
    with path.open("r+b") as f:
        f.truncate(24 + count * entry_bytes)
    with pytest.raises(errors.FormatError, match=f"{field} at byte .*1,048,576.* 1,048,577"):
        _core.GgufFile(path)


def test_arrays_in_arrays_are_bounded_however_large_the_file(
    builder: ModuleType, tmp_path: Path
) -> None:
    half = 1 << 19
    empties = builder.Part("", b"".join(p.data for p in builder.array_head(builder.U8, 0)) * half)
    head = builder.array_head(builder.ARRAY, half)
    value = builder.array(builder.ARRAY, 2, *head, empties, *head, empties)
    path = tmp_path / "nested.gguf"
    path.write_bytes(builder.Gguf([("k", value)]).build())
    with pytest.raises(errors.FormatError, match=r"metadata 'k': array count"):
        _core.GgufFile(path)


def test_control_characters_of_a_file_do_not_reach_the_terminal(
    builder: ModuleType, tmp_path: Path
) -> None:
    name = "\x1b[2J\x9b\x7f\n".encode() + b"\xff"
    path = tmp_path / "a\x1b[2Jb.gguf"
    message = str(refusal(path, builder.Gguf(tensors=[builder.Tensor(name)]).build()))
    assert message.isprintable()
    assert r"\x1b[2J\xc2\x9b\x7f\x0a\xff" in message
    assert r"a\x1b[2Jb.gguf" in message


SIZES = st.sampled_from([0, 1, 8, 0x7F, 0x80, 0xFF, 1 << 31, (1 << 32) - 1, 1 << 61, (1 << 63) - 1])
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.integers(0, 1 << 14), st.integers(0, 7)),
        st.tuples(st.just("byte"), st.integers(0, 1 << 14), st.integers(0, 255)),
        st.tuples(st.just("u64"), st.integers(0, 1 << 14), SIZES),
        st.tuples(st.just("cut"), st.integers(0, 1 << 14), st.integers(1, 64)),
        st.tuples(st.just("copy"), st.integers(0, 1 << 14), st.integers(1, 64)),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, where, n in edits:
        at = where % max(len(out), 1)
        if kind == "cut":
            del out[at : at + n]
        elif kind == "copy":
            out[at:at] = out[at : at + n]
        elif kind == "u64":
            out[at : at + 8] = n.to_bytes(8, "little")
        elif at < len(out):
            out[at] = n if kind == "byte" else out[at] ^ (1 << n)
    return bytes(out)


@pytest.mark.slow
@example(edits=[("byte", 4188, 0)])  # in the name of a tensor, spelt out when shown
@example(edits=[("byte", 4188, 0x5C)])
@example(edits=[("byte", 4188, 0xFF)])
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=EDITS)
def test_a_damaged_file_loads_or_is_refused(
    edits: list[tuple[str, int, int]], corpus: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(mutate(corpus.VALID["version_3"], edits))
    with contextlib.suppress(errors.PyflowError):
        use(_core.GgufFile(path))
