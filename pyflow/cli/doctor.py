"""`pyflow doctor`: what pyflow found on this machine, and the settings that follow."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Any

import click
import psutil

from pyflow import _core, catalogue, devices
from pyflow.cli.options.groups import as_json
from pyflow.cli.terminal.output import print_json
from pyflow.engine import topology
from pyflow.engine.memory import available_nbytes
from pyflow.text import counted

# Larger than all caches, and read in a fraction of a second.
_PROBE_BYTES = 1 << 30
_REPEATS = 5
_PREFETCHES = {
    "none": "the CPU alone",
    "near": "the kernels",
    "far": "the kernels, in two steps",
}


@click.command("doctor")
@as_json
def command(*, as_json: bool) -> None:
    """Show what pyflow found here: CPU features and the kernels chosen, threads, memory, devices.

    The read bandwidth, measured now, bounds the speed of generation: every token reads all weights.
    """
    found = _examine()
    if as_json:
        print_json(found)
    else:
        click.echo(_report(found))


def _examine() -> dict[str, Any]:
    cpu = _core.cpu_info()
    machine = topology.this_machine()
    n_threads, why = topology.choose_threads(machine, topology.cgroup_cpus())
    numa, numa_why = topology.default_numa(machine)
    placement = topology.place(machine, n_threads, numa)
    pool = _core.ThreadPool(n_threads, placement=placement.native())
    available = available_nbytes()
    probe = min(_PROBE_BYTES, available // 4)
    bandwidth = _core.read_bandwidth(pool, probe, _REPEATS)
    beside = devices.find()
    return {
        "pyflow": metadata.version("pyflow-llm"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu["model"],
        "features": cpu["features"],
        "kernels": cpu["tables"],
        "no_tiles": cpu["no_tiles"],
        "isa": cpu["isa"],
        "prefetches": cpu["prefetches"],
        "topology": {
            "cores": machine.cores(),
            "fast_cores": machine.cores(fast_only=True),
            "logical_cpus": len(machine.cpus),
            "sockets": machine.packages,
            "memory_nodes": len(machine.nodes),
            "text": str(machine),
        },
        "threads": n_threads,
        "threads_why": why,
        "numa": numa,
        "numa_why": numa_why,
        "members": len(topology.place(machine, n_threads, "members").members),
        "threads_of_nodes": {node.number: node.n_threads for node in placement.nodes},
        "memory_total": psutil.virtual_memory().total,
        "memory_available": available,
        "read_bandwidth": bandwidth,
        "devices": [_examine_device(device) for device in beside.devices],
        "devices_missing": list(beside.missing),
        "cache": str(catalogue.cache_dir()),
        "pulled": [entry.name for entry in catalogue.models() if entry.pulled],
    }


def _examine_device(device: devices.Device) -> dict[str, Any]:
    probe = devices.probe(device, catalogue.cache_dir())
    return asdict(device) | asdict(probe) | {"exact": probe.exact}


def _prefetch(found: dict[str, Any]) -> str:
    return _PREFETCHES["none" if found["isa"] == "scalar" else found["prefetches"]]


def _report(found: dict[str, Any]) -> str:
    gib = 2**30
    threads = counted(found["threads"], "thread")
    rows = {
        "pyflow": f"{found['pyflow']}, Python {found['python']}, {found['system']}",
        "CPU": f"{found['cpu']}: {found['topology']['text']}",
        "features": " ".join(found["features"]),
        "kernels": f"{found['isa']} chosen of {', '.join(found['kernels'])} (PYFLOW_ISA sets it)",
        **({} if found["isa"] in found["kernels"] else {"AMX": "in software, slow, for tests"}),
        **({"AMX": f"not used: {found['no_tiles']}"} if found["no_tiles"] else {}),
        "prefetch": f"of weights by {_prefetch(found)} (PYFLOW_PREFETCH sets it)",
        "threads": f"{found['threads']}: {found['threads_why']} (-t sets it)",
        "numa": _numa(found),
        "memory": f"{found['memory_available'] / gib:.1f} GiB available"
        f" of {found['memory_total'] / gib:.1f} GiB",
        "bandwidth": f"{found['read_bandwidth'] / 1e9:.1f} GB/s read by {threads}:"
        " a model of 1 GB generates at most"
        f" {found['read_bandwidth'] / 1e9:.0f} tokens/s",
        **dict(_devices(found)),
        "models": ", ".join(found["pulled"]) or "none pulled; run 'pyflow pull smollm2'",
        "cache": found["cache"],
    }
    return "\n".join(f"{name:<10} {text}" for name, text in rows.items())


def _devices(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A line per device; then why APIs have none."""
    gib = 2**30
    for device in found["devices"]:
        units = device["units_fault"]
        exact = "exact" if device["exact"] else f"not exact: {device['fault']}"
        if device["error"]:
            exact = f"not usable: {device['error']}"
        speed = (
            f", {device['read_bandwidth'] / 1e9:.1f} GB/s read,"
            f" {device['launch_seconds'] * 1e6:.1f} us per launch"
        )
        yield (
            f"device {device['number']}",
            f"{device['name']}: {device['api']}, driver {device['driver'].rpartition('; ')[2]};"
            f" {device['memory'] / gib:.1f} GiB, at most {device['largest_buffer'] / gib:.1f} in"
            f" one piece{'' if device['error'] else speed}; {exact}"
            + (f"; {device['refusal']}" if device["refusal"] else "")
            + (f"; matrix units not used: {units}" if units else ""),
        )
    if found["devices_missing"]:
        yield "no devices", "; ".join(found["devices_missing"])


def _numa(found: dict[str, Any]) -> str:
    threads = [f"{n} on node {node}" for node, n in found["threads_of_nodes"].items()]
    split = f", threads: {', '.join(threads)}" if threads else ""
    if found["members"] and found["numa"] != "off":
        split += f"; or {found['members']} members where they are measured to be faster"
    return f"{found['numa']}: {found['numa_why']}{split} (--numa sets it)"
