"""From a repository's name to text: `pyflow pull`, then `pyflow generate`."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import pyflow
from pyflow.cli import main
from pyflow.errors import FormatError

from .. import tiny_folders, tiny_models
from ..stores.test_stores import put_in_ollama
from .server import COMMIT, Hub, Repo
from .tiny import Q4, TOKEN, in_cache, put

GREEDY = ["--raw", "-p", "ab", "-n", "4", "--temp", "0", "-t", "1", "--json"]


def program(hub: Hub, tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    """pyflow as a process of its own, which reads the variables of the hub."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_TOKEN": TOKEN,
        "PYFLOW_DEBUG": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pyflow", *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_gguf_model_is_pulled_and_run(
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_models.write_model(
        tmp_path / "t-F16.gguf", n_layers=2, window=0, has_tokenizer=True
    )
    hub.repos["org/tiny"] = Repo({"t-F16.gguf": path.read_bytes()}, frozenset({"t-F16.gguf"}))
    with pytest.raises(FormatError, match="pyflow pull hf:org/tiny"):
        pyflow.load("hf:org/tiny")
    assert hub.seen == []
    with program(hub, tmp_path, "pull", "org/tiny", "--json") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, TOKEN in out + err) == (0, False)
    assert "apache-2.0" in err
    told = json.loads(out)
    assert told["path"] == told["files"][0]
    assert told["bytes"] == path.stat().st_size
    assert (told["name"], told["revision"]) == ("hf:org/tiny", COMMIT)
    assert told["licence"] == "apache-2.0"
    put_in_ollama(tmp_path / "ollama", "registry.ollama.ai/library/t/1", path.read_bytes())
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    answers = []
    page = f"{hub.url}/org/tiny/blob/main/t-F16.gguf"
    for name in (str(path), "hf:org/tiny", page, "ollama:t:1"):
        assert main(["generate", "-m", name, *GREEDY]) == 0
        answers.append(json.loads(capsys.readouterr().out)["tokens"])
    assert answers == [answers[0]] * 4 != [[]] * 4


def shard(folder: Path) -> None:
    """Divides model.safetensors into two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for i in (1, 2):
        part = f"model-{i:05}-of-00002.safetensors"
        own = sorted(tensors)[i - 1 :: 2]
        save_file({name: tensors[name] for name in own}, folder / part)
        places |= dict.fromkeys(own, part)
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)


def test_a_folder_of_shards_is_pulled_and_run(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    tiny_folders.write_folder(folder)
    shard(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"README.md": b"", "pytorch_model.bin": b"x", "onnx/model.onnx": b"x"}
    large = frozenset(name for name in files if name.endswith(".safetensors"))
    hub.repos["org/tiny"] = Repo(files | others, large)
    assert main(["pull", "org/tiny"]) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert {one.name for one in Path(path).iterdir()} == set(files)
    answers = []
    for name in (str(folder), "hf:org/tiny"):
        assert main(["generate", "-m", name, *GREEDY]) == 0
        answers.append(json.loads(capsys.readouterr().out)["tokens"])
    assert answers[0] == answers[1] != []
    assert main(["spec", "check", "hf:org/tiny"]) == 0
    assert main(["rm", "-y", "hf:org/tiny"]) == 2
    assert Path(path).is_dir()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_at_a_terminal_a_missing_model_is_offered(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    from pyflow.cli.options import model

    put(hub)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{answer}\n".encode())))
    tokenize = ["tokenize", "-m", "hf:org/tiny", "-p", "x"]
    assert main(tokenize) == 3
    assert hub.seen == []
    monkeypatch.setattr(model, "_somebody_answers", lambda: True)
    assert main(tokenize) == 3  # it is no real model
    assert bool(hub.seen) is (answer == "y")


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_leaves_a_pull_that_can_go_on(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = put(hub)
    hub.stops_after = 100_000
    with program(hub, tmp_path, "pull", "org/tiny") as process:
        assert hub.stopped.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        hub.goes_on.set()
    assert (process.returncode, out) == (130, "")
    assert TOKEN not in err
    assert in_cache(tmp_path) == [f"blobs/{repo.etag('t-Q4_K_M.gguf')}.incomplete"]
    hub.stops_after = None
    assert main(["pull", "org/tiny"]) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert Path(path).read_bytes() == Q4
