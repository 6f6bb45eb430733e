"""The loaders under AddressSanitizer and UndefinedBehaviorSanitizer (files_driver.cpp)."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ..programs import ENVIRONMENT

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
SOURCES = [
    ROOT / "tests/csrc/files/files_driver.cpp",
    ROOT / "csrc/core/message.cpp",
    *sorted((ROOT / "csrc/files").rglob("*.cpp")),
]
# Not optimized: that would take GCC more than twice as long.
FLAGS = ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# The driver counts memory and work by itself.
SANITIZED = ENVIRONMENT | {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(build_program: Callable[..., Path]) -> Run:
    """Runs the driver on files."""
    driver = build_program(SOURCES, FLAGS)

    def run(*files: Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [driver, *files],
            env=SANITIZED,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=300,  # a program that hangs
            check=False,
        )
        assert done.stderr == "", done.stderr
        assert done.returncode in (0, 1), done
        return done

    return run


def verdicts(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if not line.startswith("  ")]


def written(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def test_the_sanitizers_are_at_work(build_program: Callable[..., Path], tmp_path: Path) -> None:
    faults = {
        "heap-buffer-overflow": "volatile int n = 4; return (new char[n])[n];",
        "signed integer overflow": "volatile int n = 1 << 30; return n + n;",
    }
    source = tmp_path / "fault.cpp"
    cases = [f"if (n_args == {i}) {{ {body} }}" for i, body in enumerate(faults.values(), 1)]
    source.write_text(f"int main(int n_args, char**) {{ {' '.join(cases)} }}")
    driver = build_program([source], FLAGS)
    for i, fault in enumerate(faults):
        done = subprocess.run(
            [driver, *["x"] * i], env=SANITIZED, capture_output=True, text=True, check=False
        )
        assert fault in done.stderr


def test_valid_files_are_accepted(run: Run, corpus: ModuleType, tmp_path: Path) -> None:
    done = run(*written(tmp_path, corpus.VALID))
    assert done.returncode == 0
    assert verdicts(done) == ["accepted"] * len(corpus.VALID)


def test_valid_files_of_other_formats_are_accepted(
    run: Run,
    safetensors_corpus: ModuleType,
    torch_corpus: ModuleType,
    llama2c_corpus: ModuleType,
    translators: dict[str, bytes],
    tmp_path: Path,
) -> None:
    files = {f"{name}.safetensors": data for name, data in safetensors_corpus.VALID.items()}
    files |= {f"{name}.pt": data for name, data in torch_corpus.VALID.items()}
    files |= {f"{name}.bin": data for name, data in llama2c_corpus.VALID.items()}
    files |= translators
    files |= {p.name: p.read_bytes() for p in FIXTURES.iterdir() if p.suffix not in {".npz", ".py"}}
    assert set(verdicts(run(*written(tmp_path, files)))) == {"accepted"}


def test_a_type_of_our_own_that_is_to_come_asks_for_an_update(
    run: Run, corpus: ModuleType, tmp_path: Path
) -> None:
    data = corpus.VALID["version_3"].replace((77).to_bytes(4, "little"), b"\xff\x00FP")
    (path,) = written(tmp_path, {"x.gguf": data})
    told = run(path).stdout
    assert (
        f"'unknown': expected a type that this build can compute with, found type {0x504600FF};"
        in told
    )
    assert "for example Q4_K_M, or update pyflow\n" in told


def test_tensors_that_cannot_be_computed_with_are_named(
    run: Run, corpus: ModuleType, tmp_path: Path
) -> None:
    (path,) = written(tmp_path, {"x.gguf": corpus.VALID["version_3"]})
    assert run(path).stdout.splitlines() == [
        f"  {path}: tensor '{name}': expected a type that this build can compute with, found "
        f"{found}; get the model in another quantization, for example Q4_K_M"
        for name, found in {"listed": "Q1_0 (type 41)", "unknown": "type 77"}.items()
    ] + ["accepted"]


@pytest.mark.parametrize("part", ["CASES", "CUTS"])
def test_malformed_files_are_refused(
    part: str, run: Run, corpus: ModuleType, tmp_path: Path
) -> None:
    cases: list[Any] = getattr(corpus, part)
    done = run(*written(tmp_path, {case.name: case.data for case in cases}))
    assert done.returncode == 1
    for case, verdict in zip(cases, verdicts(done), strict=True):
        assert verdict.startswith(f"{case.error} {tmp_path / case.name}: ")


def test_each_malformed_file_alone_ends_with_status_1(
    run: Run, corpus: ModuleType, tmp_path: Path
) -> None:
    for case in corpus.CASES[::8]:
        assert run(*written(tmp_path, {case.name: case.data})).returncode == 1


def test_malformed_files_of_other_formats_are_refused(
    run: Run, others: dict[str, tuple[str, list[Any], dict[str, bytes]]], tmp_path: Path
) -> None:
    for kind, (name, cases, beside) in others.items():
        folder = tmp_path / kind
        folder.mkdir()
        written(folder, beside)
        done = run(*written(folder, {f"{i}.{name}": case.data for i, case in enumerate(cases)}))
        for case, verdict in zip(cases, verdicts(done), strict=True):
            assert verdict.startswith(f"{case.error} {folder}"), (case.name, verdict)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_accepted_or_refused(
    seed: int,
    run: Run,
    corpus: ModuleType,
    safetensors_corpus: ModuleType,
    torch_corpus: ModuleType,
    tmp_path: Path,
) -> None:
    rng = random.Random(seed)
    valid = [*list(corpus.VALID.values())[:2], safetensors_corpus.VALID["whole"]]
    valid += [torch_corpus.VALID["zip"], torch_corpus.VALID["stream"]]
    edges = [0, 1, 0x7F, 0x80, 0xFF, (1 << 32) - 1, 1 << 61, (1 << 63) - 1, (1 << 64) - 1]
    files = {}
    for i in range(500):
        data = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] ^= 1 << rng.randrange(8)
            else:
                data[at : at + 8] = rng.choice(edges).to_bytes(8, "little")
        files[f"{i}"] = bytes(data)
    assert len(verdicts(run(*written(tmp_path, files)))) == len(files)


def test_missing_and_special_files_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path, tmp_path / "none", tmp_path / "empty", tmp_path / "pipe", Path("/dev/zero")]
    done = run(*paths)
    for path, verdict in zip(paths, verdicts(done), strict=True):
        assert verdict.startswith(f"FormatError {path}: ")
