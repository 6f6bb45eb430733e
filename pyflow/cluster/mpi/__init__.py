"""Pipelines over the ranks that mpiexec has started."""
