"""Drafts by an MLP speculator, each head of which sees the token guessed before it."""

from pyflow.speculate.drafters.heads import heads_entry

ENTRY = heads_entry("mlp")
