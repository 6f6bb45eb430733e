"""Threads and cores, on trees laid out as Linux lays them out for machines that are not here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyflow.engine.topology import (
    NUMA_MODES,
    NumaMode,
    Placement,
    Topology,
    cgroup_cpus,
    choose_numa,
    choose_threads,
    place,
    read_topology,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_cpus(root: Path, cpus: Iterator[tuple[int, int, int]]) -> None:
    """(number, package, core) each."""
    for number, package, core in cpus:
        topology = root / f"system/cpu/cpu{number}/topology"
        write(topology / "physical_package_id", str(package))
        write(topology / "core_id", str(core))


def hybrid_laptop(root: Path) -> int:
    """Core i7-1260P: four fast cores of two threads, numbered 0 to 12 by fours; eight slow ones."""
    add_cpus(root, ((n, 0, n // 2 * 4) for n in range(8)))
    add_cpus(root, ((n, 0, n + 8) for n in range(8, 16)))
    write(root / "cpu_core/cpus", "0-7")
    write(root / "cpu_atom/cpus", "8-15")
    write(root / "system/node/node0/cpulist", "0-15")
    return 16


def two_sockets(root: Path) -> int:
    """Two Xeon Gold 6148 of twenty cores, the second threads of all numbered after the first ones.

    Core numbers repeat on the second socket.
    """
    add_cpus(root, ((n, n // 20 % 2, n % 20) for n in range(80)))
    write(root / "system/node/node0/cpulist", "0-19,40-59")
    write(root / "system/node/node1/cpulist", "20-39,60-79")
    return 80


def eight_nodes(root: Path) -> int:
    """Two EPYC 7601: four dies of eight cores each, and every die has memory of its own."""
    add_cpus(root, ((n, n // 32 % 2, n % 32) for n in range(128)))
    for node in range(8):
        first = 8 * node
        write(
            root / f"system/node/node{node}/cpulist",
            f"{first}-{first + 7},{first + 64}-{first + 71}",
        )
    return 128


def big_little(root: Path) -> int:
    """RK3588: four Cortex-A55 and four Cortex-A76."""
    add_cpus(root, ((n, 0, n) for n in range(8)))
    for n in range(8):
        write(root / f"system/cpu/cpu{n}/cpu_capacity", "530" if n < 4 else "1024")
    return 8


@pytest.mark.parametrize(
    ("lay_out", "expected", "threads"),
    [
        (hybrid_laptop, "4 fast and 8 slow cores, 16 logical CPUs, 1 socket, 1 memory node", 4),
        (two_sockets, "40 cores, 80 logical CPUs, 2 sockets, 2 memory nodes", 40),
        (eight_nodes, "64 cores, 128 logical CPUs, 2 sockets, 8 memory nodes", 64),
        (big_little, "4 fast and 4 slow cores, 8 logical CPUs, 1 socket, 1 memory node", 4),
    ],
)
def test_machines_are_read_as_they_are(
    tmp_path: Path, lay_out: object, expected: str, threads: int
) -> None:
    assert callable(lay_out)
    machine = read_topology(range(lay_out(tmp_path)), tmp_path)
    assert str(machine) == expected
    assert choose_threads(machine, math.inf)[0] == threads


def test_an_affinity_mask_is_all_there_is(tmp_path: Path) -> None:
    hybrid_laptop(tmp_path)
    both_threads_of_one_core = read_topology([2, 3], tmp_path)
    assert choose_threads(both_threads_of_one_core, math.inf) == (1, "1 core in the affinity mask")
    only_slow = read_topology(range(10, 13), tmp_path)
    assert choose_threads(only_slow, math.inf) == (3, "3 cores in the affinity mask")
    assert str(only_slow) == "3 cores, 3 logical CPUs, 1 socket, 1 memory node"
    mixed = read_topology([0, 8, 9], tmp_path)
    assert choose_threads(mixed, math.inf) == (1, "1 fast core in the affinity mask")


def test_nodes_are_those_next_to_the_cpus(tmp_path: Path) -> None:
    eight_nodes(tmp_path)
    assert read_topology([0, 7, 64, 71], tmp_path).nodes == [0]
    assert read_topology([0, 8, 16], tmp_path).nodes == [0, 1, 2]


@pytest.mark.parametrize(
    ("lay_out", "n_threads", "threads"),
    [
        (hybrid_laptop, 4, {0: 4}),
        (hybrid_laptop, 12, {0: 12}),
        (two_sockets, 40, {0: 20, 1: 20}),
        (two_sockets, 2, {0: 1, 1: 1}),
        (two_sockets, 1, {0: 1}),
        (two_sockets, 7, {0: 4, 1: 3}),
        (two_sockets, 80, {0: 40, 1: 40}),
        (eight_nodes, 64, dict.fromkeys(range(8), 8)),
        (eight_nodes, 16, dict.fromkeys(range(8), 2)),
        (eight_nodes, 4, {0: 1, 2: 1, 4: 1, 6: 1}),
    ],
)
@pytest.mark.parametrize("mode", ["local", "mirror"])
def test_threads_go_to_nodes_as_cores_do(
    tmp_path: Path, lay_out: object, n_threads: int, threads: dict[int, int], mode: NumaMode
) -> None:
    assert callable(lay_out)
    machine = read_topology(range(lay_out(tmp_path)), tmp_path)
    placement = place(machine, n_threads, mode)
    assert {node.number: node.n_threads for node in placement.nodes} == threads
    assert placement.n_copies == (len(threads) if mode == "mirror" else 1)
    for node in placement.nodes:
        assert node.cpus == tuple(c.number for c in machine.cpus if c.node == node.number)


def test_pages_go_round_all_nodes_that_a_thread_may_reach(tmp_path: Path) -> None:
    machine = read_topology(range(eight_nodes(tmp_path)), tmp_path)
    assert [node.number for node in place(machine, 4, "interleave").nodes] == [*range(8)]
    some = read_topology([0, 64, 8, 127], tmp_path)
    assert [node.number for node in place(some, 1, "interleave").nodes] == [0, 1, 7]


def test_threads_keep_to_the_affinity_mask(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    machine = read_topology([0, 1, 2, 20, 40], tmp_path)
    assert [(n.number, n.cpus, n.n_threads) for n in place(machine, 4, "local").nodes] == [
        (0, (0, 1, 2, 40), 3),
        (1, (20,), 1),
    ]


def virtual_machine(root: Path) -> int:
    """Eight packages of one core, four of which share a memory node."""
    add_cpus(root, ((n, n, 0) for n in range(8)))
    write(root / "system/node/node0/cpulist", "0-3")
    write(root / "system/node/node1/cpulist", "4-7")
    return 8


@pytest.mark.parametrize(
    ("lay_out", "n_threads", "nodes"),
    [
        (two_sockets, 40, [[(0, 20)], [(1, 20)]]),
        (two_sockets, 3, [[(0, 2)], [(1, 1)]]),
        (eight_nodes, 64, [[(n, 8) for n in range(4)], [(n, 8) for n in range(4, 8)]]),
        (eight_nodes, 2, [[(0, 1)], [(4, 1)]]),
        (virtual_machine, 8, [[(0, 4)], [(1, 4)]]),
    ],
)
def test_each_socket_has_a_member_with_the_memory_next_to_it(
    tmp_path: Path, lay_out: object, n_threads: int, nodes: list[list[tuple[int, int]]]
) -> None:
    assert callable(lay_out)
    machine = read_topology(range(lay_out(tmp_path)), tmp_path)
    placement = place(machine, n_threads, "members")
    assert placement.mode == "members"
    assert (placement.n_threads, placement.n_copies) == (n_threads, 1)
    assert {member.mode for member in placement.members} == {"local"}
    found = [[(n.number, n.n_threads) for n in member.nodes] for member in placement.members]
    assert found == nodes
    cpus = [{c for node in member.nodes for c in node.cpus} for member in placement.members]
    assert not cpus[0] & cpus[1]


def test_members_follow_the_affinity_mask_and_threads_on_one_socket_have_none(
    tmp_path: Path,
) -> None:
    two_sockets(tmp_path)
    machine = read_topology([0, 1, 2, 20, 40], tmp_path)
    found = place(machine, 4, "members").members
    assert [(n.cpus, n.n_threads) for member in found for n in member.nodes] == [
        ((0, 1, 2, 40), 3),
        ((20,), 1),
    ]
    assert place(machine, 1, "members") == place(machine, 1, "local")
    one_socket = read_topology(range(20), tmp_path)
    assert place(one_socket, 20, "members") == place(one_socket, 20, "local")


@pytest.mark.parametrize("mode", NUMA_MODES)
def test_a_machine_of_one_node_has_all_on_it(tmp_path: Path, mode: NumaMode) -> None:
    machine = read_topology(range(big_little(tmp_path)), tmp_path)
    placement = place(machine, 4, mode)
    assert [node.number for node in placement.nodes] == ([] if mode == "off" else [0])
    assert placement.n_copies == 1
    assert place(Topology(()), 2, mode) == Placement("off")


@pytest.mark.parametrize(
    ("lay_out", "policy", "refusal", "expected"),
    [
        (hybrid_laptop, "default", "", ("off", "1 memory node")),
        (two_sockets, "default", "", ("local", "2 memory nodes")),
        (eight_nodes, "", "", ("local", "8 memory nodes")),
        (
            two_sockets,
            "interleave",
            "",
            (
                "off",
                "2 memory nodes, but this process was given the policy 'interleave', as by numactl",
            ),
        ),
        (
            eight_nodes,
            "default",
            "memory on node 0: Operation not permitted",
            (
                "off",
                "8 memory nodes, but the system refuses memory on node 0: Operation not permitted",
            ),
        ),
    ],
)
def test_several_nodes_have_each_its_share_unless_that_is_refused(
    tmp_path: Path, lay_out: object, policy: str, refusal: str, expected: tuple[str, str]
) -> None:
    assert callable(lay_out)
    machine = read_topology(range(lay_out(tmp_path)), tmp_path)
    assert choose_numa(machine, policy, refusal) == expected


def test_a_system_that_tells_nothing_has_plain_cores(tmp_path: Path) -> None:
    machine = read_topology([3, 1], tmp_path)
    assert [cpu.number for cpu in machine.cpus] == [1, 3]
    assert choose_threads(machine, math.inf) == (2, "2 cores in the affinity mask")


@pytest.mark.parametrize(
    ("quota", "threads", "why"),
    [(0.5, 1, "0.50"), (1.0, 1, "1.00"), (2.9, 2, "2.90"), (64, 4, "64.00")],
)
def test_a_quota_bounds_the_threads(tmp_path: Path, quota: float, threads: int, why: str) -> None:
    machine = read_topology(range(hybrid_laptop(tmp_path)), tmp_path)
    assert choose_threads(machine, quota) == (
        threads,
        f"4 fast cores in the affinity mask, control group quota {why}",
    )


def test_the_least_quota_of_a_group_and_those_above_it_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "0::/a/b")
    root = tmp_path / "cgroup"
    assert cgroup_cpus(root, own) == math.inf
    write(root / "a/b/cpu.max", "max 100000")
    assert cgroup_cpus(root, own) == math.inf
    write(root / "a/cpu.max", "150000 100000")
    assert cgroup_cpus(root, own) == 1.5
    write(root / "a/b/cpu.max", "400000 100000")
    assert cgroup_cpus(root, own) == 1.5
    write(root / "elsewhere/cpu.max", "1000 100000")
    assert cgroup_cpus(root, own) == 1.5


def test_the_quota_of_the_older_control_groups(tmp_path: Path) -> None:
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000")
    assert cgroup_cpus(tmp_path, tmp_path / "missing") == math.inf
    write(tmp_path / "cpu/cpu.cfs_quota_us", "250000")
    assert cgroup_cpus(tmp_path, tmp_path / "missing") == 2.5


def test_no_cpu_at_all_still_runs_one_thread() -> None:
    assert choose_threads(Topology(()), math.inf)[0] == 1
