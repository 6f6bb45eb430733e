"""What torch.save writes: zip archives and streams, read without running anything."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyflow.formats
import pytest
from click.testing import CliRunner, Result

from pyflow import _core, errors
from pyflow.cli import cli

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        (tmp_path / "x.pt").write_bytes(data)
        return tmp_path / "x.pt"

    return write


def test_valid_files_open(torch_corpus: ModuleType, written: Callable[[bytes], Path]) -> None:
    for name, data in torch_corpus.VALID.items():
        checkpoint = pyflow.formats.open(written(data))
        (record,) = checkpoint.tensors
        start = 8 if name == "old_view" else 0
        expected = bytes(range(start, 16 - (8 if name == "old_view" else 0) + start))
        assert checkpoint.array(record.name).tobytes() == expected[: record.nbytes], name


def test_a_pickle_that_would_run_code_runs_nothing(
    torch_corpus: ModuleType, written: Callable[[bytes], Path]
) -> None:
    marker = Path(torch_corpus.MARKER)
    marker.unlink(missing_ok=True)
    cases = [case for case in torch_corpus.CASES if case.name.startswith("global_")]
    assert len(cases) > 40
    for case in cases:
        path = written(case.data)
        with pytest.raises(errors.FormatError):
            pyflow.formats.open(path)
        names, error = _core.pickle_globals(path)
        assert any(not known for _, known, _ in names), case.name
        assert "global at byte" in error
        CliRunner().invoke(cli, ["inspect", str(path)])
    assert not marker.exists()
    with zipfile.ZipFile(io.BytesIO(cases_by_name(cases)["global_os_system"].data)) as z:
        pickle.loads(z.read("x/data.pkl"))  # the very bytes, where pickles are run
    assert marker.exists()
    marker.unlink()


def cases_by_name(cases: list[Any]) -> dict[str, Any]:
    return {case.name: case for case in cases}


def test_all_globals_come_to_light_whatever_hides_them(
    torch_corpus: ModuleType, written: Callable[[bytes], Path]
) -> None:
    cases = cases_by_name(torch_corpus.CASES)
    found, _ = _core.pickle_globals(written(cases["global_two"].data))
    assert found == [("os.system", False, True), ("builtins.eval", False, True)]
    found, error = _core.pickle_globals(written(cases["global_then_broken"].data))
    assert found == [("os.system", False, True)]
    assert "os.system" in error
    found, error = _core.pickle_globals(FIXTURES / "module.bin")
    assert ("torch._utils._rebuild_tensor_v2", True, False) in found
    assert error == ""


def inspect(path: Path, *flags: str) -> Result:
    return CliRunner().invoke(cli, ["inspect", str(path), *flags])


def test_inspect_shows_globals_of_files_that_open_and_of_refused_ones(
    torch_corpus: ModuleType, written: Callable[[bytes], Path]
) -> None:
    shown = inspect(FIXTURES / "training.pth").output
    assert "PyTorch zip" in shown
    assert "  torch._utils._rebuild_tensor_v2\n" in shown
    report = json.loads(inspect(FIXTURES / "training.pth", "--json").output)
    assert {"name": "torch.Size", "known": True, "runs_code": False} in report["globals"]
    assert len(report["tensors"]) == 11
    path = written(cases_by_name(torch_corpus.CASES)["global_in_dict"].data)
    assert "  os.system  (refused: it could run code)\n" in inspect(path).output
    report = json.loads(inspect(path, "--json").output)
    assert {"name": "os.system", "known": False, "runs_code": True} in report["globals"]
    assert "os.system" in report["refused"]
    assert "os.system" in report["error"]["message"]


@pytest.mark.parametrize(
    ("module", "name", "runs_code"),
    [
        ("posix", "system", True),
        ("importlib._bootstrap", "_gcd_import", True),
        ("__builtin__", "getattr", True),
        ("torch.serialization", "os.system", True),
        ("builtins", "complex", False),
        ("numpy.core.multiarray", "scalar", False),
        ("argparse", "Namespace", False),
        ("torch._utils", "_rebuild_sparse_tensor", False),
        ("torch", "QUInt8Storage", False),
        ("ostrich", "system", False),
    ],
)
def test_only_what_is_known_to_run_code_is_said_to(
    module: str, name: str, runs_code: bool, torch_builder: ModuleType, written: Callable[..., Path]
) -> None:
    build = torch_builder
    stacked = build.text(module) + build.text(name) + b"\x93"
    path = written(build.stream(build.pickled(build.dict_of(build.text("a"), stacked))))
    with pytest.raises(errors.FormatError) as caught:
        pyflow.formats.open(path)
    known = f"loading it elsewhere could run code, by {module}.{name}; nothing was run here"
    unknown = (
        "not on the list of what a checkpoint needs, and what it would do elsewhere is not known"
    )
    assert (known if runs_code else unknown) in str(caught.value)
    why = "it could run code" if runs_code else "not on the list of what a checkpoint needs"
    assert f"  {module}.{name}  (refused: {why})\n" in inspect(path).output


@pytest.mark.parametrize(("bit", "word"), [("conj", "conjugated"), ("neg", "negated")])
def test_what_is_still_to_be_done_to_values_is_not_supported(
    bit: str, word: str, torch_builder: ModuleType, written: Callable[..., Path]
) -> None:
    build = torch_builder

    def file(truth: bytes) -> Path:
        more = build.FALSE + build.HOOKS + build.dict_of(build.text(bit), truth)
        return written(build.stream(build.weights(build.tensor(more=more))))

    said = rf"tensor 'w0': .* {word} \({bit}\); .*resolve_conj"
    with pytest.raises(errors.UnsupportedError, match=said):
        pyflow.formats.open(file(b"\x88"))
    assert pyflow.formats.open(file(b"\x89")).array("w0").shape == (2, 2)


def test_names_that_collide_are_told_as_such(
    torch_builder: ModuleType, written: Callable[..., Path]
) -> None:
    build = torch_builder
    inner = build.dict_of(build.text("b"), build.tensor())
    pickled = build.pickled(
        build.dict_of(build.text("a.b"), build.tensor(), build.text("a"), inner)
    )
    with pytest.raises(errors.FormatError, match=r"'a\.b'"):
        pyflow.formats.open(written(build.stream(pickled)))


def test_torchscript_is_told_as_such(
    torch_builder: ModuleType, written: Callable[..., Path]
) -> None:
    build = torch_builder
    program = build.named("__torch__", "Net") + build.EMPTY_TUPLE + b"\x81"
    members = [
        build.Member("x/data.pkl", build.pickled(program)),
        build.Member("x/code/__torch__.py", b"class Net(Module): pass"),
        build.Member("x/constants.pkl", build.pickled(build.EMPTY_TUPLE)),
    ]
    path = written(build.zipped(members))
    with pytest.raises(errors.UnsupportedError, match="TorchScript"):
        pyflow.formats.open(path)
    assert "  __torch__.Net  (refused: not on the list" in inspect(path).output
    members[0] = build.Member("x/data.pkl", build.pickled(build.named("os", "system")))
    with pytest.raises(errors.FormatError, match=r"os\.system"):
        pyflow.formats.open(written(build.zipped(members)))


def test_what_is_not_a_tensor_is_metadata() -> None:
    metadata = pyflow.formats.open(FIXTURES / "training.pth").metadata
    assert metadata["epoch"] == 3
    assert metadata["optimizer.param_groups.0.betas"] == [0.9, 0.999]
    assert metadata["optimizer.param_groups.0.fused"] is None
    assert (metadata["size"], metadata["dtype"], metadata["history.1.0"]) == ([2, 3], "BF16", 0.5)
    for path in FIXTURES.glob("protocol*.pt"):
        assert pyflow.formats.open(path).metadata == {"n": [1, 2.5, None, True, "x", 1 << 70]}


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_views_share_the_storage_and_keep_their_strides(kind: str) -> None:
    checkpoint = pyflow.formats.open(FIXTURES / f"views.{kind}.pt")
    base = checkpoint.array("base")
    by_name = {t.name: t for t in checkpoint.tensors}
    for name, strides in {
        "part": (6, 1),
        "transposed": (1, 6),
        "element": (),
        "steps": (12, 3),
        "same": (6, 1),
        "spread": (0, 1),
    }.items():
        record = by_name[name]
        assert record.strides == strides
        assert record.contiguous == (name in {"element", "same"})
        assert np.shares_memory(base, checkpoint.array(name))
        assert record.offset >= by_name["base"].offset
    assert not checkpoint.array("part").flags.writeable


def test_a_damaged_storage_is_found_by_its_checksum(written: Callable[[bytes], Path]) -> None:
    good = pyflow.formats.open(FIXTURES / "parameter.pt")
    data = bytearray((FIXTURES / "parameter.pt").read_bytes())
    data[good.tensors[0].offset] ^= 1
    checkpoint = pyflow.formats.open(written(bytes(data)))
    with pytest.raises(errors.FormatError, match=r"storage at byte \d+: .*CRC"):
        checkpoint.array("w")


def deflated(path: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(path) as a, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as b:
        for name in a.namelist():
            b.writestr(name, a.read(name))
    return out.getvalue()


def test_deflated_archives_give_the_same(written: Callable[[bytes], Path]) -> None:
    for name in ("types.zip.pt", "views.zip.pt", "module.bin"):
        expected = pyflow.formats.open(FIXTURES / name)
        checkpoint = pyflow.formats.open(written(deflated(FIXTURES / name)))
        assert checkpoint.metadata == expected.metadata
        assert len(checkpoint.tensors) == len(expected.tensors)
        for t in expected.tensors:
            array = checkpoint.array(t.name)
            assert array.tobytes() == expected.array(t.name).tobytes()
    held = checkpoint.array("head.weight")
    assert np.shares_memory(held, checkpoint.array("embed.weight"))
    del checkpoint
    assert held.shape == (5, 4)


def test_damaged_deflated_data_are_refused(written: Callable[[bytes], Path]) -> None:
    whole = deflated(FIXTURES / "module.bin")
    with zipfile.ZipFile(io.BytesIO(whole)) as z:
        pickled, stored = z.getinfo("module/data.pkl"), z.getinfo("module/data/0")
    for info in (pickled, stored):
        data = bytearray(whole)
        start = info.header_offset + 30 + len(info.filename)
        data[start : start + 4] = b"\xff" * 4
        with pytest.raises(errors.FormatError, match="unpacked"):
            pyflow.formats.open(written(bytes(data))).array("embed.weight")


def test_a_copy_larger_than_the_file_is_refused(
    torch_corpus: ModuleType, written: Callable[[bytes], Path]
) -> None:
    checkpoint = pyflow.formats.open(written(torch_corpus.spread("BFloat16Storage", 1 << 40)))
    with pytest.raises(errors.ResourceError, match="w0"):
        checkpoint.array("w0")
    checkpoint = pyflow.formats.open(written(torch_corpus.spread("FloatStorage", 1 << 40)))
    assert checkpoint.array("w0").shape == (1 << 40,)  # a view takes nothing


def test_shards_of_pytorch_are_one_checkpoint(tmp_path: Path) -> None:
    for i, name in enumerate(("module.bin", "parameter.pt")):
        (tmp_path / f"pytorch_model-{i}.bin").write_bytes((FIXTURES / name).read_bytes())
    files = {"embed.weight": 0, "head.weight": 0, "head.bias": 0, "w": 1}
    index = {"weight_map": {name: f"pytorch_model-{i}.bin" for name, i in files.items()}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (tmp_path / "training_args.bin").write_bytes(b"x")
    checkpoint = pyflow.formats.open(tmp_path)
    assert {t.name: int(Path(t.source).stem[-1]) for t in checkpoint.tensors} == files
    assert checkpoint.array("w").tolist() == [[1.0] * 3] * 2
    report = json.loads(inspect(tmp_path, "--json").output)
    assert report["files"] == ["pytorch_model-0.bin", "pytorch_model-1.bin"]
    assert {t["name"]: int(t["file"][-5]) for t in report["tensors"]} == files
    assert np.shares_memory(checkpoint.array("embed.weight"), checkpoint.array("head.weight"))


@pytest.mark.slow
def test_a_mutated_file_opens_or_is_refused(
    torch_corpus: ModuleType, written: Callable[[bytes], Path]
) -> None:
    rng = np.random.default_rng(1)
    views = [p.read_bytes() for p in FIXTURES.glob("views.*.pt")]
    for whole in [torch_corpus.VALID["zip"], torch_corpus.VALID["stream"], *views]:
        for _ in range(300):
            data = bytearray(whole)
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] = rng.integers(256)
            try:
                checkpoint = pyflow.formats.open(written(bytes(data)))
                for t in checkpoint.tensors:
                    if t.nbytes < 1 << 20:
                        checkpoint.array(t.name).sum()
            except errors.PyflowError:
                continue
