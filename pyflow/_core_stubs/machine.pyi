"""Threads, devices and the machine (csrc/bindings/machine)."""

from collections.abc import Sequence
from typing import Any

class Placement:
    """Threads and memory nodes, as `topology.Placement` plans them; shared by pools.

    mode: off, interleave, local or mirror. nodes: number, CPUs and number of threads of each.
    """

    def __init__(self, mode: str, nodes: Sequence[tuple[int, Sequence[int], int]]) -> None: ...
    @property
    def n_copies(self) -> int:
        """Of the weights."""
    @property
    def refusals(self) -> list[str]:
        """What the system refused so far, and why; each once."""

MAX_THREADS: int

class ThreadPool:
    """Persistent worker threads, shared by all contexts of a model."""

    def __init__(
        self, n_threads: int, adapts: bool = True, *, placement: Placement = ...
    ) -> None: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def placement(self) -> Placement: ...

def cpu_info() -> dict[str, Any]:
    """model: str, features: list[str], tables: list[str] that it runs, no_tiles: why AMX is not
    used, empty where it is or is not there, isa: the table chosen, prefill: its arithmetic of
    prompts, prefetches: bool, whether kernels fetch ahead the weights that meet one or two rows.
    """

def memory_policy() -> str:
    """The policy this process was started with, "default" or as by numactl; empty if unknown."""

def binding_refusal(nodes: Sequence[int]) -> str:
    """What the system refuses of binding memory to these nodes, and why; empty for nothing."""

def read_bandwidth(pool: ThreadPool, nbytes: int, repeats: int) -> float:
    """Bytes per second of reading fresh memory with all threads of a pool; the best of repeats."""

def devices() -> dict[str, Any]:
    """What this machine has beside the CPU; the first call opens all drivers.

    found: a dict per device, in the same order each time: api, name, vendor, driver, kind (gpu,
    cpu or other), memory and largest_buffer in bytes, compute_units, unified. missing: why an API
    has no device, and what to try. Whether a device can be used, only probe_device tells.
    """

def drivers_at_work() -> int:
    """Threads in which drivers still compile, maybe for nobody any more.

    The process must not exit while there are some, but by os._exit."""

def probe_device(
    number: int, folder: str, formats: Sequence[str] | None = None, measures: bool = True
) -> dict[str, Any]:
    """Opens a device of devices() and tries it, which may take seconds.

    formats: of weights that are tried; None: some that stand for all. measures: its speed too.
    fault: the first result that differs from the CPU's, empty if the device is exact. units_fault:
    the same of matrix units, which then are not used.
    read_bandwidth: bytes per second. launch_seconds. free_memory: bytes, None where the driver does
    not tell. refusal: why `folder` could not keep compiled programs, or empty. Raises DeviceError.
    """
