"""Files of hosts, as people and batch systems write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyflow.cluster.supervise.hosts import Place, places_of
from pyflow.errors import PyflowError


def test_a_file_of_hosts_has_a_machine_per_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(
        b"\xef\xbb\xbf# ours\r\nnode1\r\nnode2:3  # big\n\nnode-3.lan slots=2 max_slots=4\n"
        b"10.0.0.7 slots = 4\n\tnode1\nnode1 cpu=2\nn[08-10,3].lan:2\n"
    )
    expected = [("node1", 4), ("node2", 3), ("node-3.lan", 2), ("10.0.0.7", 4)]
    expected += [("n08.lan", 2), ("n09.lan", 2), ("n10.lan", 2), ("n3.lan", 2)]
    assert places_of(file) == [Place(host, n) for host, n in expected]


def test_a_host_may_have_a_users_name(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("me@node1:2\nroot@n[1-2] gpu=0\n")
    assert places_of(file) == [
        Place("me@node1", 2),
        Place("root@n1", 1, ("0",)),
        Place("root@n2", 1, ("0",)),
    ]


def test_ranks_of_a_line_may_have_a_device(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a gpu=0\nb:2 gpu=Graphics\nb\na slots=1 gpu=1;2\nc\n")
    assert [(place.host, place.n, place.gpu_of_each) for place in places_of(file)] == [
        ("a", 2, ("0", "1;2")),
        ("b", 3, ("Graphics", "Graphics", "")),
        ("c", 1, ("",)),
    ]


WRONG = ["node1 node2", "node1:0", "node1:9999", "-x", "a,b", "node:", "n[3-1]", "n[-]"]
WRONG += ["me@", "@node1", "a@b@c"]
WRONG += ["n[1-99999999]", "n[1", "node1:2 slots=2", "node1 weight=3", "node1 slots=", "n[1-1025]"]
WRONG += ["node1 gpu=", "node1 gpu=0 gpu=1", "node1 gpu=a=b", "node1 gpu=a card"]


@pytest.mark.parametrize("line", WRONG)
def test_other_lines_are_refused_with_their_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"node1\n{line}\n")
    with pytest.raises(PyflowError, match="hosts: line 2"):
        places_of(file)


def test_files_without_hosts_and_with_too_many_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# none\n")
    with pytest.raises(PyflowError, match="hosts"):
        places_of(file)
    file.write_bytes(b"node1\n\xff")
    with pytest.raises(PyflowError, match=r"hosts: .*byte 6 "):
        places_of(file)
    file.write_text("a:1024\nb\n")
    with pytest.raises(PyflowError, match=r"1,024 .*1,025"):
        places_of(file)
