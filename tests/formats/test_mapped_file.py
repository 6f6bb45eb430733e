"""Opening what is no file to map, and giving pages back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyflow.formats
import pytest

from pyflow import _core, errors


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", Path(__file__) / "under-a-file"):
        with pytest.raises(errors.FormatError, match=re.escape(str(path))):
            _core.GgufFile(path)


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError, match="found a directory"):
        _core.GgufFile(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(errors.FormatError, match=r"x: .*0 bytes"):
        _core.GgufFile(tmp_path / "x")


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.FormatError, match="found a pipe"):
        _core.GgufFile(tmp_path / "pipe")


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("sock")
        with pytest.raises(errors.FormatError, match="found a socket"):
            _core.GgufFile("sock")


def test_a_device() -> None:
    with pytest.raises(errors.FormatError, match="found a device"):
        _core.GgufFile("/dev/zero")


def test_links_are_followed_and_loops_refused(corpus: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(corpus.VALID["version_3"])
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    assert _core.GgufFile(tmp_path / "link").version == 3
    with pytest.raises(errors.FormatError, match=r"loop: .*symbolic links"):
        _core.GgufFile(tmp_path / "loop")


def test_an_unreadable_file(corpus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(corpus.VALID["version_3"])
    path.chmod(0)
    if os.access(path, os.R_OK):
        assert _core.GgufFile(path).version == 3  # nothing is unreadable to root
    else:
        with pytest.raises(errors.FormatError, match=r"x: .*Permission denied"):
            _core.GgufFile(path)


def test_names_of_any_kind(corpus: ModuleType, tmp_path: Path) -> None:
    for name in ("ü 日本", b"\xff\xfe\n"):
        path = os.fsencode(tmp_path) + b"/" + os.fsencode(name)
        with pytest.raises(errors.FormatError, match=r"(ü 日本|xff)"):
            _core.GgufFile(path)
        Path(os.fsdecode(path)).write_bytes(corpus.VALID["version_3"])
        assert _core.GgufFile(path).version == 3
        assert _core.GgufFile(Path(os.fsdecode(path))).version == 3
        assert _core.GgufFile(os.fsdecode(path)).version == 3


def test_a_zero_byte_in_a_path_does_not_shorten_it(corpus: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(corpus.VALID["version_3"])
    with pytest.raises(errors.FormatError, match=r"x\\x00y"):
        _core.GgufFile(f"{tmp_path}/x\0y")


def test_what_is_no_path() -> None:
    with pytest.raises(TypeError):
        _core.GgufFile(3)  # type: ignore[arg-type]


def limited(limits: str, path: Path) -> str:
    """What opening path says in a process of its own under the limits given."""
    program = f"""
import resource, sys
from pathlib import Path
from pyflow import _core, errors
{limits}
try:
    _core.GgufFile(sys.argv[1])
except errors.PyflowError as e:
    print(type(e).__name__, e)
"""
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_no_descriptors_left(corpus: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(corpus.VALID["version_3"])
    said = limited("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", tmp_path / "x")
    assert re.fullmatch(r"ResourceError .*/x: .*Too many open files.*\n", said)


def test_no_address_space_left(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    os.truncate(path, 1 << 40)
    limit = """
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), used + (1 << 26)))"""
    said = limited(limit, path)
    assert re.fullmatch(r"ResourceError .*/x: 1,099,511,627,776 bytes.*ulimit.*\n", said)


def resident_kib(path: Path) -> int:
    """How much of the file is in this process's memory."""
    smaps = Path("/proc/self/smaps").read_text()
    found = re.findall(rf"{re.escape(str(path))}\n(?:[A-Z].*\n)*?Rss: +(\d+) kB", smaps)
    return sum(map(int, found))


def test_released_pages_leave_memory_and_come_back(builder: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x"
    n = 1 << 22
    content = os.urandom(n)
    path.write_bytes(builder.Gguf(tensors=[builder.Tensor(dims=(n // 4,))], data=content).build())
    file = _core.GgufFile(path)
    data = file.data("t")
    assert data.tobytes() == content
    assert resident_kib(path) >= n // 1024

    file.release("t")
    assert resident_kib(path) <= 64  # what a single fault brings in again
    assert data.tobytes() == content
    piece = 10_000
    for begin in range(0, n, piece):
        file.release("t", begin, piece)
    assert resident_kib(path) <= 64
    assert data.tobytes() == content


@pytest.mark.parametrize("kind", ["gguf", "safetensors", "zip", "stream"])
def test_a_large_file_opens_by_its_headers(
    kind: str, builder: ModuleType, torch_corpus: ModuleType, tmp_path: Path
) -> None:
    n = 1 << 28
    shape = f'{{"t":{{"dtype":"F32","shape":[{n}],"data_offsets":[0,{4 * n}]}}}}'.encode()
    head, tail = {
        "gguf": lambda: (builder.Gguf(tensors=[builder.Tensor(dims=(n,))]).build(), b""),
        "safetensors": lambda: (len(shape).to_bytes(8, "little") + shape, b""),
        "zip": lambda: torch_corpus.large_zip(n),
        "stream": lambda: torch_corpus.large_stream(n),
    }[kind]()
    path = tmp_path / f"large.{kind}"
    with path.open("wb") as file:
        file.write(head)
        file.seek(4 * n, os.SEEK_CUR)  # a hole, of which no page is in memory
        file.write(tail)
        file.truncate()
    checkpoint = pyflow.formats.open(path)
    assert [t.nbytes for t in checkpoint.tensors] == [4 * n]
    assert resident_kib(path) <= 256
    if kind != "zip":  # whose tensors are summed up at their first use
        weights = checkpoint.array(checkpoint.tensors[0].name)
        assert resident_kib(path) <= 256
        assert (weights[0], weights[-1], weights.flags.owndata) == (0, 0, False)


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 10_000, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 20_000, 1 << 63, (1 << 64) - 1])
def test_any_range_may_be_released(
    offset: int, nbytes: int, builder: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    content = os.urandom(16384)
    path.write_bytes(builder.Gguf(tensors=[builder.Tensor(dims=(4096,))], data=content).build())
    file = _core.GgufFile(path)
    file.release("t", offset, nbytes)
    assert file.data("t").tobytes() == content
