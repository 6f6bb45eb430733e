"""What wheels are made for is one list, and what else speaks of it agrees."""

from __future__ import annotations

import platform
import sys
import sysconfig
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """wheels/check.py, imported as its program does: its folder is on the path."""
    monkeypatch.syspath_prepend(ROOT / "wheels")
    import check

    return check


def test_the_metadata_names_the_pythons_that_wheels_are_made_for(wheels: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    named = [c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)]
    assert named == [python.version for python in wheels.PYTHONS]
    assert project["requires-python"] == f">={named[0]}"


def test_the_page_on_installing_names_every_tag(wheels: ModuleType) -> None:
    page = (ROOT / "docs/install.md").read_text()
    for each in wheels.PLATFORMS:
        assert each.glibc <= (2, 28)
        assert each.tag in page
    for python in wheels.PYTHONS:
        assert f"| {python.version} |" in page


def test_this_python_would_find_the_module_of_its_wheel(wheels: ModuleType) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = {python.version: python for python in wheels.PYTHONS}
    if here not in pythons or platform.machine() not in {p.machine for p in wheels.PLATFORMS}:
        pytest.skip("no wheel is made for this Python or machine")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert pythons[here].module(platform.machine()) == f"_core{suffix}"


def test_every_wheel_is_run(wheels: ModuleType) -> None:
    made = {
        (each.machine, python.version) for each in wheels.PLATFORMS for python in wheels.PYTHONS
    }
    run = [(where.machine, where.version) for where in wheels.ENVIRONMENTS]
    assert set(run) == made
    names = [where.name for where in wheels.ENVIRONMENTS]
    assert len(names) == len(set(names))
