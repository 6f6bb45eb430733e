"""The page's files: what they come with, and what they do without a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from ..conftest import Server

FILES = {
    file.name: file.read_text() for file in files("pyflow.serve.page").iterdir() if file.is_file()
}
SENT = [name for name in FILES if not name.endswith(".py")]


def test_every_file_is_served_with_headers_that_keep_strangers_out(server: Server) -> None:
    for name in SENT:
        path = "/" if name == "index.html" else f"/page/{name}"
        status, headers, raw = server.request("GET", path)
        assert (status, raw.decode()) == (200, FILES[name])
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert {policy.pop(kind) for kind in ("script-src", "style-src", "connect-src")} == {
            "'self'"
        }
        assert "unsafe" not in str(policy)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers
    assert server.request("GET", "/page/page.js")[1]["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path", ["/page/", "/page/__init__.py", "/page/../app.py", "/page/%2e%2e/app.py", "/page/x.js"]
)
def test_nothing_else_is_served(server: Server, path: str) -> None:
    assert server.request("GET", path)[0] == 404


def test_files_name_each_other_and_nothing_outside() -> None:
    named = re.findall(r'(?:src|href)="([^"]+)"', FILES["index.html"])
    assert {name.removeprefix("/page/") for name in named if name[0] == "/"} <= {*SENT}
    for name, text in FILES.items():
        imports = re.findall(r"""from ['"]([^'"]+)""", text) if name.endswith(".js") else []
        assert {each.removeprefix("./") for each in imports} <= {*SENT}, name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|@import|url\(", text
        ), name
        assert not re.search(r"<script(?! type=\"module\" src)|<style|\son\w+=\"|\sstyle=", text), (
            name
        )


def test_the_modules_do_what_they_should_under_node(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    for name, text in FILES.items():
        if name.endswith(".js"):
            (tmp_path / name).write_text(text)
    shutil.copy(Path(__file__).with_name("check.js"), tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(
        [node, "check.js"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
