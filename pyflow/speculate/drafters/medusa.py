"""Drafts by the heads of Medusa, which see no token but the newest one's hidden row."""

from pyflow.speculate.drafters.heads import heads_entry

ENTRY = heads_entry("medusa")
