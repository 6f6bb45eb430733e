"""Models in the stores of other programs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from pyflow import catalogue, stores
from pyflow.cli import main
from pyflow.errors import FormatError
from pyflow.stores import Aside, Stored

GGUF = b"GGUF" + bytes(100)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; no variable moves a store, and this machine's own are not looked at."""
    from huggingface_hub import constants

    from pyflow.stores import ollama

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME", "PYFLOW_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(ollama, "SERVICE", tmp_path / "service")
    return tmp_path


def write(path: Path, content: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def put_in_ollama(top: Path, name: str, content: bytes = GGUF) -> Path:
    """A model by its manifest, HOST/NAMESPACE/MODEL/TAG; the path of its weights."""
    digest = hashlib.sha256(content).hexdigest()
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{d}", "size": n}
        for kind, d, n in (("model", digest, len(content)), ("template", "0" * 64, 3))
    ]
    write(top / "manifests" / name, json.dumps({"schemaVersion": 2, "layers": layers}).encode())
    return write(top / f"blobs/sha256-{digest}", content)


def usable() -> dict[str, Path]:
    return {one.name: one.path for one in stores.found() if isinstance(one, Stored)}


def aside() -> set[str]:
    return {one.path.name for one in stores.found() if isinstance(one, Aside)}


def test_no_store_is_no_error(home: Path) -> None:
    assert list(stores.found()) == []
    for prefix in stores.PREFIXES:
        with pytest.raises(FormatError, match="pyflow list --local"):
            stores.resolve(f"{prefix}x")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("variable", [False, True])
def test_models_of_ollama_have_its_names(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: bool
) -> None:
    top = home / ("elsewhere" if variable else ".ollama/models")
    if variable:
        monkeypatch.setenv("OLLAMA_MODELS", str(top))
    path = put_in_ollama(top, "registry.ollama.ai/library/llama3.2/1b")
    put_in_ollama(top, "registry.ollama.ai/library/qwen/latest", GGUF + b"1")
    put_in_ollama(top, "registry.ollama.ai/me/mine/v1", GGUF + b"2")
    put_in_ollama(top, "hf.co/org/repo/Q4_K_M", GGUF + b"3")
    assert set(usable()) == {
        *("ollama:llama3.2:1b", "ollama:qwen:latest", "ollama:me/mine:v1"),
        "ollama:hf.co/org/repo:Q4_K_M",
    }
    for name in ("ollama:llama3.2:1b", "OLLAMA:Llama3.2:1B"):
        assert catalogue.resolve(name) == path
    assert catalogue.resolve("ollama:qwen") == usable()["ollama:qwen:latest"]
    with pytest.raises(FormatError, match=r"ollama:llama3\.2:1b"):
        catalogue.resolve("ollama:llama3.2:2b")


def test_broken_models_of_ollama_are_left_aside(home: Path) -> None:
    top = home / ".ollama/models"
    library = "registry.ollama.ai/library"
    put_in_ollama(top, f"{library}/gone/1", GGUF + b"1").unlink()
    half = put_in_ollama(top, f"{library}/half/2", GGUF + b"2")
    half.write_bytes(GGUF)
    outside = {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": "sha256:../x",
        "size": 1,
    }
    for name, content in (
        ("text", b"no json"),
        ("list", b"[]"),
        ("none", b'{"layers": []}'),
        ("path", json.dumps({"layers": [outside]}).encode()),
        ("long", b"[" * (2 << 20)),
    ):
        write(top / "manifests" / library / "bad" / name, content)
    (top / "manifests" / library / "bad/link").symlink_to("nowhere")
    assert usable() == {}
    assert aside() == {"1", half.name, "text", "list", "none", "path", "long", "link"}
    with pytest.raises(FormatError):
        catalogue.resolve("ollama:half:2")


def test_models_of_lm_studio_have_the_names_of_their_folders(home: Path) -> None:
    top = home / ".lmstudio/models"
    q4 = write(top / "pub/m-GGUF/m-Q4_K_M.gguf")
    q8 = write(top / "pub/m-GGUF/m-Q8_0.gguf")
    write(top / "pub/m-GGUF/mmproj-m.gguf")
    one = write(home / ".cache/lm-studio/models/pub/one/One.gguf")
    parts = [write(top / f"pub/big/b-{i:05}-of-00002.gguf") for i in (1, 2)]
    assert set(usable()) == {
        *("lmstudio:pub/m-GGUF/m-Q4_K_M.gguf", "lmstudio:pub/m-GGUF/m-Q8_0.gguf"),
        *("lmstudio:pub/one/One.gguf", "lmstudio:pub/big/b-00001-of-00002.gguf"),
    }
    for name, path in (
        ("pub/m-GGUF/m-Q4_K_M.gguf", q4),
        ("pub/m-gguf:q8_0", q8),
        ("pub/m-GGUF/m-Q8_0", q8),
        ("pub/one", one),
        ("pub/big", parts[0]),
    ):
        assert catalogue.resolve(f"lmstudio:{name}") == path
    with pytest.raises(FormatError, match=r"m-Q4_K_M\.gguf.*m-Q8_0\.gguf"):
        catalogue.resolve("lmstudio:pub/m-GGUF")


@pytest.mark.parametrize("variable", [False, True])
def test_llama_cpp_keeps_files_in_one_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: bool
) -> None:
    top = home / ("elsewhere" if variable else ".cache/llama.cpp")
    if variable:
        monkeypatch.setenv("LLAMA_CACHE", str(top))
    path = write(top / "org_repo_m-Q4_K_M.gguf")
    write(top / "org_repo_m-Q4_K_M.gguf.json", b"{}")
    assert usable() == {"llama.cpp:org_repo_m-Q4_K_M.gguf": path}
    assert catalogue.resolve("llama.cpp:org_repo_m-Q4_K_M") == path


def test_half_files_and_broken_links_are_left_aside(home: Path) -> None:
    top = home / ".cache/llama.cpp"
    write(top / "a.gguf.downloadInProgress")
    write(top / "b.gguf.part")
    write(top / "c.gguf", b"GG")
    write(top / "d-00001-of-00002.gguf")
    (top / "e.gguf").symlink_to("nowhere")
    (top / "f.gguf").symlink_to("f.gguf")
    os.mkfifo(top / "g.gguf")
    assert usable() == {}
    assert aside() == {
        *("a.gguf.downloadInProgress", "b.gguf.part", "c.gguf", "d-00001-of-00002.gguf"),
        *("e.gguf", "f.gguf", "g.gguf"),
    }


def put_in_hub(home: Path, repo: str, names: list[str], commit: str = "a" * 40) -> Path:
    folder = home / "hub" / f"models--{repo.replace('/', '--')}"
    for name in names:
        blob = write(folder / "blobs" / name)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    write(folder / "refs/main", commit.encode())
    return folder / "snapshots" / commit


def test_models_of_the_hubs_cache_are_named_by_repository_and_quant(home: Path) -> None:
    two = put_in_hub(home, "org/two", ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m.gguf"])
    one = put_in_hub(home, "org/one", ["x.gguf"])
    folder = put_in_hub(home, "gpt2", ["config.json", "model.safetensors"])
    put_in_hub(home, "org/tokens", ["tokenizer.json"])
    put_in_hub(home, "org/half", ["config.json", "model.safetensors.index.json"])
    put_in_hub(home, "org/gone", ["y.gguf"]).joinpath("y.gguf").resolve().unlink()
    old = put_in_hub(home, "org/old", ["z.gguf"], "b" * 40)
    old.parents[1].joinpath("refs/main").unlink()
    write(home / "hub/models--org--one/blobs/etag.incomplete")
    write(home / "hub/datasets--org--data/refs/main", b"c" * 40)
    found = usable()
    assert found == {
        "hf:org/two:Q4_K_M": two / "m-Q4_K_M.gguf",
        "hf:org/two:Q8_0": two / "m-Q8_0.gguf",
        "hf:org/one": one / "x.gguf",
        "hf:gpt2": folder,
        f"hf:org/old@{'b' * 40}": old / "z.gguf",
    }
    assert aside() == {"a" * 40, "y.gguf", "etag.incomplete"}
    for name, path in found.items():
        assert catalogue.resolve(name) == path


def test_stores_are_only_read(home: Path) -> None:
    put_in_ollama(home / ".ollama/models", "registry.ollama.ai/library/m/1")
    write(home / ".lmstudio/models/p/r/m.gguf")
    put_in_hub(home, "org/one", ["x.gguf"])

    def state() -> list[tuple[str, int]]:
        return sorted((str(p), p.lstat().st_mtime_ns) for p in home.rglob("*"))

    before = state()
    for name in usable():
        catalogue.resolve(name)
    assert state() == before


def test_a_pointer_in_the_hubs_cache_is_left_aside(home: Path) -> None:
    for repo, name in (("org/gguf", "x.gguf"), ("org/weights", "model.safetensors")):
        path = put_in_hub(home, repo, [name, "config.json"]) / name
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    asides = list(stores.of_hub())
    assert all(isinstance(one, stores.Aside) and "git-lfs" in one.why for one in asides)
    assert [one.path.name for one in asides] == ["x.gguf", "model.safetensors"]


def test_list_shows_what_is_here_and_what_is_left_aside(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put_in_ollama(home / ".ollama/models", "registry.ollama.ai/library/m/1")
    half = write(home / ".cache/llama.cpp/a\x1b.gguf.part")
    pulled = put_in_hub(home, "org/one", ["x.gguf"]) / "x.gguf"

    def shown(*args: str) -> tuple[str, str]:
        assert main(["list", *args]) == 0
        found = capsys.readouterr()
        return found.out, found.err

    told = json.loads(shown("--local", "--json")[0])
    assert [(one["name"], one["path"], one["bytes"]) for one in told["models"]] == [
        ("ollama:m:1", str(path), len(GGUF)),
        ("hf:org/one", str(pulled), len(GGUF)),
    ]
    assert [one["path"] for one in told["aside"]] == [str(half)]
    out, err = shown("--local", "-v")
    assert "ollama:m:1" in out
    assert half.name.replace("\x1b", "\\x1b") in err
    assert half.name not in shown("--local")[1]
    assert "hf:org/one" in shown()[0]
    assert json.loads(shown("--json")[0])[-1]["path"] == str(pulled)
    for name in ("hf:org/one", "org/one", "ollama:m:1"):
        assert main(["rm", "-y", name]) == 2
    assert path.exists()
    assert pulled.exists()
