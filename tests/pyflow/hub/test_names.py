"""Names of the hub and URLs: what each means, and what is none."""

from __future__ import annotations

import pytest

from pyflow.errors import FormatError
from pyflow.hub.names import FileUrl, HubName, is_repo, is_safe, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:org/repo", HubName("org/repo")),
        ("HF:org/repo:q4_k_m", HubName("org/repo", None, "q4_k_m")),
        ("hf://org/repo@v1.0:sub/x.gguf", HubName("org/repo", "v1.0", "sub/x.gguf")),
        ("hf:gpt2@refs/pr/1", HubName("gpt2", "refs/pr/1")),
        ("https://huggingface.co/org/repo", HubName("org/repo")),
        ("hf.co/org/repo:Q8_0", HubName("org/repo", None, "Q8_0")),
        ("https://hf.co/org/repo/tree/main", HubName("org/repo", "main")),
        (
            "https://huggingface.co/org/repo/blob/main/a%20b/x.gguf?download=true",
            HubName("org/repo", "main", "a b/x.gguf"),
        ),
        (
            "https://huggingface.co/gpt2/resolve/refs%2Fpr%2F1/model.safetensors",
            HubName("gpt2", "refs/pr/1", "model.safetensors"),
        ),
        ("https://a.example/b/x.gguf#part", FileUrl("https://a.example/b/x.gguf")),
        ("http://[::1]:8/x.SAFETENSORS?k=1", FileUrl("http://[::1]:8/x.SAFETENSORS?k=1")),
        ("org/repo", None),
        ("some-model", None),
        ("C:/x.gguf", None),
    ],
)
def test_a_name_is_read(text: str, expected: object) -> None:
    assert parse(text) == expected
    if isinstance(expected, HubName):
        assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("hf:", "hf:/", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a--b/c", "hf:a/b.git", "hf:a/b:"),
        *("hf:a/b@", "hf:a/b@../c", "hf:a/b:../../c", "hf:a/b:/etc/x", "hf:a/\x1b[1m", "hf:.a/b"),
        *("https://", "https://x.example/", "https://x.example/page.html", "https://x:y/z.gguf"),
        *("https://hf.co/datasets/a/b", "https://x.example/a\x07.gguf", "https://[x/a.gguf"),
        *("https://hf.co/a/b/blob/main/../../x", "https://u:secret@x.example/a.gguf"),
    ],
)
def test_what_is_no_name_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(FormatError) as error:
        parse(text)
    assert "secret" not in str(error.value)
    assert str(error.value).isprintable()


def test_pages_of_the_endpoint_are_pages_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://mirror.example:81")
    page = "http://mirror.example:81/org/repo/blob/main/x.gguf"
    assert parse(page) == HubName("org/repo", "main", "x.gguf")
    other = page.replace("81", "82")
    assert parse(other) == FileUrl(other)


def test_repositories_are_told_from_files_and_words() -> None:
    assert is_repo("org/repo")
    assert is_repo("org/repo@main:Q8_0")
    assert not is_repo("repo")
    assert not is_repo("./x.gguf")
    assert not is_repo("a/b/c")


@pytest.mark.parametrize("path", ["", "/a", "a//b", "../a", "a/../b", "a/.", "a\\b", "a\0", "a\n"])
def test_paths_that_leave_their_folder_are_not_safe(path: str) -> None:
    assert not is_safe(path)
    assert is_safe("a/b.c/d..e")
