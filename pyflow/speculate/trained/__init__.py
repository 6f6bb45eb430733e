"""Trained speculators: their files, and the networks that are run from them."""
