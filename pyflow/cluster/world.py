"""The ranks that were started together, of which this process is one."""

from __future__ import annotations

from dataclasses import dataclass

from pyflow.cluster.endpoint import load_mpi


@dataclass(frozen=True, slots=True)
class World:
    """n_here: ranks on this rank's host."""

    rank: int
    size: int
    n_here: int


def world() -> World:
    """PyflowError where there is no MPI, or none that can be used."""
    mpi = load_mpi()
    comm = mpi.COMM_WORLD
    here = comm.Split_type(mpi.COMM_TYPE_SHARED)
    found = World(comm.Get_rank(), comm.Get_size(), here.Get_size())
    here.Free()
    return found
