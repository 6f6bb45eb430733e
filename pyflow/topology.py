"""Which cores this process may use, and how many threads suit it."""

from __future__ import annotations

import math
import os
from pathlib import Path


def cgroup_cpus(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float:
    """The CPU quota of this process's control group in cores, infinite when there is none.

    Reads cgroup v2's cpu.max of the group and its ancestors, or v1's cfs quota.
    """
    best = math.inf
    group = root
    try:
        for line in own.read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                group = root / path.lstrip("/")
    except OSError:
        pass
    for folder in (group, *group.parents):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                best = min(best, int(quota) / int(period))
        except (OSError, ValueError):
            pass
        if folder == root:
            break
    try:
        quota_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        if quota_us > 0 and period_us > 0:
            best = min(best, quota_us / period_us)
    except (OSError, ValueError):
        pass
    return best


def physical_cores(cpus: set[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many physical cores the given logical CPUs lie on; every CPU counts where unknown."""
    cores = set()
    for cpu in cpus:
        topology = root / f"cpu{cpu}" / "topology"
        try:
            package = (topology / "physical_package_id").read_text().strip()
            core = (topology / "core_id").read_text().strip()
            cores.add((package, core))
        except OSError:
            cores.add(("", str(cpu)))
    return len(cores)


def default_threads() -> tuple[int, str]:
    """The number of threads to use, and why, in words.

    One per physical core that the affinity mask allows, no more than the control group's quota:
    a second thread on a core shares its multiplier, and threads beyond the quota are throttled
    while others wait for them.
    """
    allowed = os.sched_getaffinity(0)
    cores = physical_cores(allowed)
    quota = cgroup_cpus()
    n = max(1, min(cores, math.floor(quota) if quota != math.inf else cores))
    why = f"{cores} physical cores in the affinity mask of {len(allowed)} CPUs"
    if quota != math.inf:
        why += f", control group quota {quota:.2f}"
    return n, why
