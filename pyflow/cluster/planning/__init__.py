"""Choosing a split of the layers and a strategy, by simulation in virtual time."""
