"""What ranks share in memory is removed where nobody is left who uses it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from pyflow.cluster.supervise.leftovers import remove_shared
from pyflow.cluster.supervise.lifeline import Numbers


def changed_at(path: Path) -> float:
    return path.stat().st_ctime


def test_only_what_is_new_and_unused_is_removed(tmp_path: Path) -> None:
    names = ["mpich_shm_old", "mpich_shm_left", "ucx_shm_posix_left", "mpich_shm_mapped"]
    names += ["mpich_shm_open", "other_left"]
    paths = {name: tmp_path / name for name in names}
    for name in names:
        paths[name].write_bytes(bytes(4096))
        while name == names[1] and changed_at(paths[name]) == changed_at(paths["mpich_shm_old"]):
            paths[name].write_bytes(bytes(4096))  # until the file system's clock has gone on
    since = changed_at(paths[names[1]])
    fd = os.open(paths["mpich_shm_mapped"], os.O_RDWR)
    mapped = mmap.mmap(fd, 4096)
    os.close(fd)
    with mapped, paths["mpich_shm_open"].open():
        remove_shared(since, tmp_path)
    left = {name for name in names if not name.endswith("_left")} | {"other_left"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_ranks_are_known_by_their_first_numbers() -> None:
    assert str(Numbers.all(3)) == "3,0,1,2"
    numbers = Numbers(4, (0, 2, 3))
    assert Numbers.read(str(numbers)) == numbers
    assert [numbers.now(number) for number in range(4)] == [0, None, 1, 2]
